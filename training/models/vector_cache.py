"""A cache of a frozen encoder's vectors, for later runs.

The runs of a comparison often share a frozen transformer, and encoding takes most of their time.
`compare` and `fit` choose a folder for the vectors. Other commands keep vectors if the environment
variable `KEYMATCH_VECTOR_CACHE` names a folder. A vector's key is a hash of the encoder's weights
and of the text's tokens, so cached vectors are never outdated. The folder may be deleted at any
time.

The folder has a subfolder for each encoder, whose files hold `keys` [n, 16] and `vectors` [n, d].

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
    """The cached vectors of one encoder, computed in one precision."""

    folder: Path

    def vectors(self, table: TokenTable, encode: Callable[[Rows], Floats]) -> Floats:
        """Return the vectors [n, d] of a table's texts; `encode` computes the missing ones.

        Raises `InvalidData` for a damaged file, and if the folder cannot be written.
        """
        keys = text_keys(table)
        known, vectors = self._read()
        places = np.array([known.get(key, -1) for key in keys], np.int64)
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return vectors[places]
        made = encode(missing)  # [missing, d]
        self._write([keys[row] for row in missing.tolist()], made)
        places[missing] = len(vectors) + np.arange(len(missing))
        known_and_made: Floats = np.concatenate([vectors, made]) if len(vectors) else made
        return known_and_made[places]

    def _read(self) -> tuple[dict[bytes, int], Floats]:
        """Return the row of each known key, and the vectors."""
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
    """Return an encoder's cache; None if the environment variable names no folder.

    `precision` is the one that the encoder computes in.
    """
    folder = os.environ.get(VECTOR_CACHE)
    if not folder:
        return None
    return VectorCache(folder=Path(folder) / fingerprint(encoder, precision=precision))


@contextmanager
def vectors_kept_in(folder: Path) -> Iterator[None]:
    """Cache vectors in `folder` within the block, unless the environment names another folder."""
    named = os.environ.get(VECTOR_CACHE)
    os.environ[VECTOR_CACHE] = named or str(folder)
    try:
        yield
    finally:
        del os.environ[VECTOR_CACHE]
        if named is not None:
            os.environ[VECTOR_CACHE] = named


def fingerprint(encoder: nn.Module, *, precision: str) -> str:
    """Return a hash of an encoder's precision, modules and weights."""
    digest = hashlib.sha256(f"{precision} {encoder!r}".encode())
    for name, tensor in encoder.state_dict().items():
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
        digest.update(array.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def text_keys(table: TokenTable) -> list[bytes]:
    """Return a hash of each text's tokens."""
    texts = map(table.of, range(len(table)))
    return [hashlib.blake2b(ids.tobytes(), digest_size=KEY_BYTES).digest() for ids in texts]
