"""IRENE's files, with which keys of novel labels are computed; see `encoding.irene`.

They are the same in a bundle and in an exported encoder.

| file                    | content                                                            |
|-------------------------|--------------------------------------------------------------------|
| `novel/combiner.onnx`   | texts, classifiers, present -> unit vectors, see `onnx_combiner`   |
| `novel/classifiers.npy` | fp16 [S, d], unit vectors: W                                       |
| `novel/columns.npy`     | int64 [S], ascending: the label column of each classifier          |
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from service.core.bundle.manifest import NovelFacts
from service.core.errors import BundleAltered
from service.core.files.text_store import mapped
from service.core.types import Halves, Rows

COMBINER, CLASSIFIERS, COLUMNS = (
    "novel/combiner.onnx",
    "novel/classifiers.npy",
    "novel/columns.npy",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelFiles:
    """The combiner's file, the classifiers W [S, d], their label columns [S], and the facts."""

    facts: NovelFacts
    combiner: Path
    classifiers: Halves
    columns: Rows


def write(files: NovelFiles, folder: Path) -> None:
    """Write the files below `folder`."""
    (folder / COMBINER).parent.mkdir()
    shutil.copyfile(files.combiner, folder / COMBINER)
    np.save(folder / CLASSIFIERS, files.classifiers.astype(np.float16))
    np.save(folder / COLUMNS, files.columns.astype(np.int64))


def read(folder: Path, facts: NovelFacts, *, labels: int, dimension: int) -> NovelFiles:
    """Map the files below `folder`.

    Raises `BundleAltered`, naming the file that does not fit `labels` columns and `dimension`.
    """
    classifiers, columns = mapped(folder / CLASSIFIERS), mapped(folder / COLUMNS)
    if classifiers.shape != (len(columns), dimension):
        raise BundleAltered(
            f"{folder / CLASSIFIERS} has shape {classifiers.shape},"
            f" expected {(len(columns), dimension)}"
        )
    if len(columns) and not (0 <= columns[0] and columns[-1] < labels):
        raise BundleAltered(f"{folder / COLUMNS} has columns outside the {labels} labels")
    if (np.diff(columns) <= 0).any():
        raise BundleAltered(f"{folder / COLUMNS} is not ascending")
    return NovelFiles(
        facts=facts, combiner=folder / COMBINER, classifiers=classifiers, columns=columns
    )


def with_fingerprint(facts: NovelFacts, folder: Path) -> NovelFacts:
    """Return the facts with their fingerprint: a SHA-256 over facts, combiner and classifiers.

    With the encoder's fingerprint it determines the key of any novel label.
    """
    numbers = {**asdict(facts), "fingerprint": ""}
    digest = hashlib.sha256(repr(sorted(numbers.items())).encode())
    for name in (COMBINER, CLASSIFIERS):
        digest.update((folder / name).read_bytes())
    return replace(facts, fingerprint=digest.hexdigest())
