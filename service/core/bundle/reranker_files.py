"""The second ranking's files; see `prediction.reranking`.

They are the same in a bundle and in the folder that `python -m training rerank` writes.

| file                  | content                                                         |
|-----------------------|-----------------------------------------------------------------|
| `reranker/trees.onnx` | features [k, F] of candidates -> the sum of all trees [k, 1]    |
| `reranker/words.npy`  | uint64 [W], ascending: hashes of the words of labels            |
| `reranker/rarity.npy` | float64 [W]: the logarithm of each word's inverse frequency     |
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.manifest import RerankerFacts
from service.core.errors import BundleAltered
from service.core.files.text_store import mapped
from service.core.types import Doubles

TREES, WORDS, RARITY = "reranker/trees.onnx", "reranker/words.npy", "reranker/rarity.npy"


@dataclass(frozen=True, kw_only=True, eq=False)
class RerankerFiles:
    """The trees' file, the words' hashes [W] with their rarity [W], and the facts."""

    facts: RerankerFacts
    trees: Path
    words: NDArray[np.uint64]
    rarity: Doubles


def write(files: RerankerFiles, folder: Path) -> None:
    """Write the files below `folder`."""
    (folder / TREES).parent.mkdir()
    shutil.copyfile(files.trees, folder / TREES)
    np.save(folder / WORDS, files.words.astype(np.uint64))
    np.save(folder / RARITY, files.rarity.astype(np.float64))


def read(folder: Path, facts: RerankerFacts) -> RerankerFiles:
    """Map the files below `folder`; raises `BundleAltered`, naming the file that does not fit."""
    for name in (TREES, WORDS, RARITY):
        if not (folder / name).exists():
            raise BundleAltered(f"{folder / name} is missing, but there is a second ranking")
    words, rarity = mapped(folder / WORDS), mapped(folder / RARITY)
    for name, array, kind in ((WORDS, words, np.uint64), (RARITY, rarity, np.float64)):
        if array.dtype != kind or array.shape != (len(words),):
            raise BundleAltered(
                f"{folder / name} holds {array.dtype} {list(array.shape)},"
                f" expected {np.dtype(kind)} [{len(words)}]"
            )
    if (words[1:] <= words[:-1]).any():
        raise BundleAltered(f"{folder / WORDS} is not ascending")
    return RerankerFiles(facts=facts, trees=folder / TREES, words=words, rarity=rarity)


def with_fingerprint(files: RerankerFiles) -> RerankerFiles:
    """Return the files with a SHA-256 over facts, trees and words among the facts."""
    numbers = {**asdict(files.facts), "fingerprint": ""}
    digest = hashlib.sha256(repr(sorted(numbers.items())).encode())
    digest.update(files.trees.read_bytes())
    for array in (files.words, files.rarity):
        digest.update(np.ascontiguousarray(array).tobytes())
    return replace(files, facts=replace(files.facts, fingerprint=digest.hexdigest()))
