"""Metadata that is missing or wrong: the noise of MOGIC's Tables 8 and 9, as pure functions.

Each takes and returns metadata_of [N, M], a row for each text; `rng` draws what is changed.

Shapes: N texts, M items.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Bools, Rows


def dropped(metadata_of: csr_matrix, share: float, rng: np.random.Generator) -> csr_matrix:
    """Without a `share` of the links, drawn over all texts."""
    rows, items = _links(metadata_of)
    kept = rng.random(len(rows)) >= share
    return _matrix(rows[kept], items[kept], metadata_of.shape)


def replaced(metadata_of: csr_matrix, share: float, rng: np.random.Generator) -> csr_matrix:
    """With a `share` of the links led to a random item in place of the true one."""
    rows, items = _links(metadata_of)
    wrong = rng.random(len(rows)) < share
    items = np.where(wrong, rng.integers(metadata_of.shape[1], size=len(items)), items)
    return _matrix(rows, items, metadata_of.shape)


def bank(items: int, share: float, rng: np.random.Generator) -> Bools:
    """Which of so many items a smaller bank has, [M]: a `share` of them, drawn at random."""
    banked = np.zeros(items, bool)
    banked[rng.permutation(items)[: round(share * items)]] = True
    return banked


def within(metadata_of: csr_matrix, banked: Bools) -> csr_matrix:
    """With the links to items of the bank [M] alone."""
    rows, items = _links(metadata_of)
    kept = banked[items]
    return _matrix(rows[kept], items[kept], metadata_of.shape)


def _links(metadata_of: csr_matrix) -> tuple[Rows, Rows]:
    rows, items = metadata_of.nonzero()
    return rows, items


def _matrix(rows: Rows, items: Rows, shape: tuple[int, int]) -> csr_matrix:
    """Ones at (row, item); a pair that is drawn twice counts once."""
    matrix = csr_matrix((np.ones(len(rows), np.float32), (rows, items)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix
