"""The queries that a checkpoint has trained on, so that no later run measures it on them.

| file                | content                                                                  |
|---------------------|--------------------------------------------------------------------------|
| `trained_texts.npz` | `before` and `own`: ascending hashes of texts, uint64, without duplicates |

`own` are the texts of the run itself, `before` those of all earlier runs behind the encoder that it
started from. A text that is both trained on and held out counts as held out. Read without torch.

Shapes: N training rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from service.core.errors import InvalidData
from service.core.files.atomic import write_file
from service.core.types import Bools, Rows
from training.models.encoder_location import locate

FILE = "trained_texts.npz"
Hashes = NDArray[np.uint64]


def _none() -> Hashes:
    return np.zeros(0, np.uint64)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedTexts:
    """Hashes of the queries that a checkpoint and its ancestors have trained on."""

    before: Hashes = field(default_factory=_none)
    own: Hashes = field(default_factory=_none)

    @property
    def all(self) -> Hashes:
        """Hashes of the texts of the checkpoint and of its ancestors."""
        return np.union1d(self.before, self.own)

    def after(self, texts: Sequence[str], *, trained: Rows, held_out: Rows) -> TrainedTexts:
        """Return the record of a run that starts from this checkpoint.

        The run trains on the rows `trained` of `texts` [N], and is measured on the rows `held_out`.
        """
        hashes = _hashes(texts)
        own = np.setdiff1d(hashes[trained], hashes[held_out])
        return TrainedTexts(before=self.all, own=own)

    def unseen(self, texts: Sequence[str]) -> Bools:
        """Mark texts [N] on which neither the checkpoint nor its ancestors have trained."""
        return ~np.isin(_hashes(texts), self.all)

    def unseen_before(self, texts: Sequence[str]) -> Bools:
        """Mark texts [N] that no ancestor of the checkpoint has trained on."""
        return ~np.isin(_hashes(texts), self.before)


def write(trained: TrainedTexts, checkpoint: Path) -> None:
    """Write the record into a checkpoint's folder."""
    content = BytesIO()
    np.savez(content, before=trained.before, own=trained.own)
    write_file(checkpoint / FILE, content.getvalue())


def read(checkpoint: Path) -> TrainedTexts | None:
    """Read a checkpoint's record, None if it has none; `InvalidData` for a damaged file."""
    path = checkpoint / FILE
    if not path.is_file():
        return None
    try:
        with np.load(path) as arrays:
            before, own = arrays["before"], arrays["own"]
    except (ValueError, KeyError, EOFError, BadZipFile) as error:
        raise InvalidData(path, f"is not what `train` writes: {error}") from error
    if any(array.dtype != np.uint64 or array.ndim != 1 for array in (before, own)):
        raise InvalidData(path, "is not what `train` writes: it holds no hashes")
    return TrainedTexts(before=before, own=own)


def of_encoder(name: str) -> TrainedTexts:
    """Read the record of an encoder, given its folder, run or name; empty if it has none."""
    return read(Path(locate(name))) or TrainedTexts()


def _hashes(texts: Sequence[str]) -> Hashes:
    """Return the first eight bytes of each text's BLAKE2 hash, [N]."""
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
