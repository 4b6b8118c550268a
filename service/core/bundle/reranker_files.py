"""The reranker's files; see `prediction.reranking`.

A bundle and the folder that `keymatch lab rerank` writes have the same files.

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

from service.core.bundle.manifest import Manifest, RerankerFacts
from service.core.errors import BundleAltered
from service.core.files.arrays import mapped, require_ascending, require_within
from service.core.types import Doubles

FILES = (TREES, WORDS, RARITY) = (
    "reranker/trees.onnx",
    "reranker/words.npy",
    "reranker/rarity.npy",
)
MOST_RARITY = 1_000.0  # the largest logarithm, as in `RerankerFacts`


@dataclass(frozen=True, kw_only=True, eq=False)
class RerankerFiles:
    """The path of the trees, the words' hashes [W] and rarities [W], and the facts."""

    facts: RerankerFacts
    trees: Path
    words: NDArray[np.uint64]
    rarity: Doubles


def write(files: RerankerFiles, folder: Path) -> None:
    """Write the files into `folder`."""
    (folder / TREES).parent.mkdir()
    shutil.copyfile(files.trees, folder / TREES)
    np.save(folder / WORDS, files.words.astype(np.uint64))
    np.save(folder / RARITY, files.rarity.astype(np.float64))


def without(facts: Manifest) -> Manifest:
    """Return a bundle's manifest without its reranker."""
    files = {name: one for name, one in facts.files.items() if name not in FILES}
    return replace(facts, reranker=None, files=files)


def remove(folder: Path) -> None:
    """Remove the files from `folder`."""
    shutil.rmtree((folder / TREES).parent)


def read(folder: Path, facts: RerankerFacts, *, verify: bool = True) -> RerankerFiles:
    """Open the files in `folder` memory-mapped; `verify` also checks the numbers in them.

    Raises `BundleAltered`, naming the file that does not fit.
    """
    for name in FILES:
        if not (folder / name).exists():
            raise BundleAltered(f"{folder / name} is missing, but there is a reranker")
    words = mapped(folder / WORDS, np.uint64)
    rarity = mapped(folder / RARITY, np.float64, (len(words),))
    if verify:
        require_ascending(folder / WORDS, words, strictly=True)
        require_within(folder / RARITY, rarity, 0.0, MOST_RARITY)
    return RerankerFiles(facts=facts, trees=folder / TREES, words=words, rarity=rarity)


def with_fingerprint(files: RerankerFiles) -> RerankerFiles:
    """Return the files with a fingerprint in the facts: the SHA-256 over facts, trees, words."""
    numbers = {**asdict(files.facts), "fingerprint": ""}
    digest = hashlib.sha256(repr(sorted(numbers.items())).encode())
    digest.update(files.trees.read_bytes())
    for array in (files.words, files.rarity):
        digest.update(np.ascontiguousarray(array).tobytes())
    return replace(files, facts=replace(files.facts, fingerprint=digest.hexdigest()))
