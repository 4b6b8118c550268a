"""IRENE's files, from which keys of novel labels are computed; see `encoding.irene`.

A bundle and an exported encoder have the same files.

| file                    | content                                                            |
|-------------------------|--------------------------------------------------------------------|
| `novel/combiner.onnx`   | texts, classifiers, present -> unit vectors, see `OnnxCombiner`    |
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
from service.core.files.arrays import mapped, require_ascending, require_finite, require_within
from service.core.types import Halves, Rows

FILES = (COMBINER, CLASSIFIERS, COLUMNS) = (
    "novel/combiner.onnx",
    "novel/classifiers.npy",
    "novel/columns.npy",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelFiles:
    """The combiner's path, the classifiers W [S, d], their label columns [S], and the facts."""

    facts: NovelFacts
    combiner: Path
    classifiers: Halves
    columns: Rows


def write(files: NovelFiles, folder: Path) -> None:
    """Write the files into `folder`."""
    (folder / COMBINER).parent.mkdir()
    shutil.copyfile(files.combiner, folder / COMBINER)
    np.save(folder / CLASSIFIERS, files.classifiers.astype(np.float16))
    np.save(folder / COLUMNS, files.columns.astype(np.int64))


def read(
    folder: Path, facts: NovelFacts, *, labels: int, dimension: int, verify: bool = True
) -> NovelFiles:
    """Open the files in `folder` memory-mapped; `verify` also checks the numbers in them.

    Raises `BundleAltered`, naming the file that does not fit `labels` columns and `dimension`.
    """
    columns = mapped(folder / COLUMNS, np.int64)
    classifiers = mapped(folder / CLASSIFIERS, np.float16, (len(columns), dimension))
    if verify:
        require_within(folder / COLUMNS, columns, 0, labels)
        require_ascending(folder / COLUMNS, columns, strictly=True)
        require_finite(folder / CLASSIFIERS)
    return NovelFiles(
        facts=facts, combiner=folder / COMBINER, classifiers=classifiers, columns=columns
    )


def with_fingerprint(facts: NovelFacts, folder: Path) -> NovelFacts:
    """Return the facts with a fingerprint: the SHA-256 over facts, combiner and classifiers.

    Together with the encoder's fingerprint, it determines the key of any novel label.
    """
    numbers = {**asdict(facts), "fingerprint": ""}
    digest = hashlib.sha256(repr(sorted(numbers.items())).encode())
    for name in (COMBINER, CLASSIFIERS):
        digest.update((folder / name).read_bytes())
    return replace(facts, fingerprint=digest.hexdigest())
