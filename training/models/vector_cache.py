"""Vectors that a frozen encoder made once, kept for the runs that come after.

Entries of a comparison differ in what they teach beside the same frozen transformer, which takes
most of their time. `compare` names a folder for its entries, and `fit` for its candidates; any
other command keeps vectors where the environment variable `KEYMATCH_VECTOR_CACHE` names a folder. A
vector is known by the encoder's weights and by the text's tokens, so it is never wrong, and the
folder may be deleted at any time.

A folder holds one for each encoder, whose files hold `keys` [n, 16] and `vectors` [n, d].

Shapes: n texts, d dimensions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import nn

from service.core.errors import InvalidData
from service.core.files.atomic import write_file
from service.core.types import Floats, Rows
from training.models.encoder_location import VECTOR_CACHE
from training.models.tokens import TokenTable

KEY_BYTES = 16
KEYS, VECTORS = "keys", "vectors"


@dataclass(frozen=True, kw_only=True)
class VectorCache:
    """The vectors of one encoder, in one arithmetic."""

    folder: Path

    def vectors(self, table: TokenTable, encode: Callable[[Rows], Floats]) -> Floats:
        """The vectors [n, d] of a table's texts; `encode` makes those that are not known yet.

        Raises `InvalidData` for a damaged file, and where the folder cannot be written.
        """
        keys = text_keys(table)
        known, vectors = self._read()
        places = np.array([known.get(key, -1) for key in keys], np.int64)
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return vectors[places]
        made = encode(missing)  # [missing, d]
        self._write([keys[row] for row in missing.tolist()], made)
        found = np.empty((len(keys), made.shape[1]), np.float32)
        found[missing] = made
        present = np.flatnonzero(places >= 0)
        if len(present):
            found[present] = vectors[places[present]]
        return found

    def _read(self) -> tuple[dict[bytes, int], Floats]:
        """The row of each known key, and the vectors."""
        keys: list[bytes] = []
        vectors: list[Floats] = []
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                arrays = load_file(path)
                rows, made = arrays[KEYS], arrays[VECTORS]
            except (OSError, SafetensorError, KeyError) as error:
                raise InvalidData(path, f"cannot be read; delete it: {error}") from error
            keys += [row.tobytes() for row in rows]
            vectors.append(made)
        known = {key: place for place, key in enumerate(keys)}
        return known, np.concatenate(vectors) if vectors else np.zeros((0, 0), np.float32)

    def _write(self, keys: list[bytes], vectors: Floats) -> None:
        rows = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
        name = hashlib.sha256(rows.tobytes()).hexdigest()[: 2 * KEY_BYTES]
        content = save({KEYS: rows.copy(), VECTORS: np.ascontiguousarray(vectors, np.float32)})
        write_file(self.folder / f"{name}.safetensors", content)


def cache_of(encoder: nn.Module, *, precision: str) -> VectorCache | None:
    """The cache of an encoder in the folder that the environment names; None where it names none.

    `precision` is the arithmetic in which vectors are made.
    """
    folder = os.environ.get(VECTOR_CACHE)
    if not folder:
        return None
    return VectorCache(folder=Path(folder) / fingerprint(encoder, precision=precision))


@contextmanager
def vectors_kept_in(folder: Path) -> Iterator[None]:
    """Within the block `folder` keeps vectors, unless the environment names another one."""
    named = os.environ.get(VECTOR_CACHE)
    os.environ[VECTOR_CACHE] = named or str(folder)
    try:
        yield
    finally:
        if named is None:
            del os.environ[VECTOR_CACHE]
        else:
            os.environ[VECTOR_CACHE] = named


def fingerprint(encoder: nn.Module, *, precision: str) -> str:
    """What tells encoders apart: their modules as they describe themselves, and all weights."""
    digest = hashlib.sha256(f"{precision} {encoder!r}".encode())
    for name, tensor in encoder.state_dict().items():
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
        digest.update(array.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def text_keys(table: TokenTable) -> list[bytes]:
    """A hash of each text's tokens."""
    return [
        hashlib.blake2b(table.of(row).tobytes(), digest_size=KEY_BYTES).digest()
        for row in range(len(table))
    ]
