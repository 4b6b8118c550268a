"""Which queries of a table are held out for the test split.

Shapes: Q distinct queries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.core.types import Bools


def split_by_hash(queries: Sequence[str], *, fraction: float, seed: int) -> Bools:
    """Each query by a hash of its text [Q]: queries that are added later move no other one."""
    return np.array([is_test(text, fraction=fraction, seed=seed) for text in queries], bool)


def is_test(query: str, *, fraction: float, seed: int) -> bool:
    """Whether a hash of `seed` and `query`, as a number in [0, 1), is below `fraction`."""
    digest = hashlib.sha256(f"{seed}\0{query}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def split_by_time(
    queries: Sequence[str], newest_of: NDArray[np.float64], *, fraction: float
) -> Bools:
    """The queries whose newest rows are the latest [Q]; `newest_of` [Q] are the rows' times.

    Because the newest row counts, train holds no row that is later than the newest row of any test
    query: nothing is learned from the time that is measured. Equal times are in order of the text.
    """
    by_age = sorted(range(len(queries)), key=lambda row: (newest_of[row], queries[row]))
    test = np.zeros(len(queries), bool)
    test[by_age[len(queries) - round(fraction * len(queries)) :]] = True
    return test
