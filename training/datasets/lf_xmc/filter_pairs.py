"""Filter files: one line `row label` for each filtered pair.

Filtered predictions are removed before ranking. A missing file means the same as an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from service.core.files.lines import find, numbered_lines
from training.datasets.dataset import pairs_matrix

TRAIN = "filter_labels_train.txt"
TEST = "filter_labels_test.txt"


def read_filter(folder: Path, name: str, *, shape: tuple[int, int]) -> csr_matrix:
    """Return [N, L] bool; a repeated pair is marked once.

    Raises `InvalidData` for a line that is not two integers below `shape`.
    """
    path = find(folder, name)
    pairs = _pairs(path, shape=shape) if path is not None else iter(())
    return pairs_matrix(pairs, shape=shape)


def filter_lines(filtered: csr_matrix) -> Iterator[bytes]:
    """Yield lines that `read_filter` reads back equal."""
    rows, labels = filtered.nonzero()
    for index in np.lexsort((labels, rows)):
        yield b"%d %d" % (rows[index], labels[index])


def _pairs(path: Path, *, shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for line, text in numbered_lines(path):
        words = text.split()
        if len(words) != 2 or not all(_is_index(word) for word in words):
            raise InvalidData(path, f"expected `row label`, not {text[:80]!r}", line=line)
        pair = (int(words[0]), int(words[1]))
        for field, value, limit in zip(("row", "label"), pair, shape, strict=True):
            if value >= limit:
                raise InvalidData(
                    path,
                    f"{value} is out of range: it must be below {limit}",
                    line=line,
                    field=field,
                )
        yield pair


def _is_index(word: str) -> bool:
    # A longer number is out of any range, and int() would be slow or refuse it.
    return word.isascii() and word.isdigit() and len(word) <= 18
