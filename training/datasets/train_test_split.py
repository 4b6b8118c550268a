"""Chooses the test split: the queries of a table that are held out.

Shapes: Q distinct queries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.core.errors import InvalidData
from service.core.files.lines import find
from service.core.text_identity import identity
from service.core.types import Bools
from training.datasets.dataset import Dataset


def split_by_hash(queries: Sequence[str], *, fraction: float, seed: int) -> Bools:
    """Mark the queries [Q] that a hash of their text's identity sends to test.

    All spellings of a text go to the same side, and queries that are added later move no others.
    """
    sides = (is_test(identity(text), fraction=fraction, seed=seed) for text in queries)
    return np.fromiter(sides, bool, len(queries))


def is_test(query: str, *, fraction: float, seed: int) -> bool:
    """Whether a hash of `seed` and `query`, as a number in [0, 1), is below `fraction`."""
    digest = hashlib.sha256(f"{seed}\0{query}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def split_by_time(
    queries: Sequence[str], newest_of: NDArray[np.float64], *, fraction: float
) -> Bools:
    """Mark the queries [Q] whose newest rows, at times `newest_of` [Q], are the latest.

    No training row is later than the newest row of any test query. Ties are broken by the text.
    """
    by_age = sorted(range(len(queries)), key=lambda row: (newest_of[row], queries[row]))
    test = np.zeros(len(queries), bool)
    test[by_age[len(queries) - round(fraction * len(queries)) :]] = True
    return test


TRAIN_FILES = ("trn.json", "train_raw_texts.txt", "trn_X_Y.txt")


def refuse_overlap(dataset: Dataset, folder: Path) -> None:
    """Raise `InvalidData` that names the first training row whose text is also a test text.

    Both layouts have one row on each line; the error names the line of the training file.
    """
    test = {text: row for row, text in reversed(list(enumerate(dataset.test.instances.texts)))}
    for row, text in enumerate(dataset.train.instances.texts):
        if text in test:
            path = next(filter(None, (find(folder, name) for name in TRAIN_FILES)), folder)
            raise InvalidData(
                path,
                f"the text {text[:80]!r} is also test row {test[text] + 1}; figures would be too"
                " good (--allow-test-rows trains nevertheless)",
                line=row + 1,
                field="title",
            )
