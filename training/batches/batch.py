"""One batch: instances, the pool of labels that they are contrasted with, and who is what to whom.

Shapes: B instances, P labels of the pool, N training rows, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.types import Bools, Indices, Rows
from training.batches.settings import BatchSettings
from training.datasets.training_pairs import TrainingPairs


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The arrays that the losses take as masks; see `losses.py`."""

    rows: Rows  # [B] of the training split
    pool: Indices  # [P] labels, ascending
    sampled: Bools  # [B, P]
    positives: Bools  # [B, P]
    negatives: Bools  # [B, P]
    strangers: Bools  # [B, B]


Mined = NDArray[np.int32]  # [N, top] hard negatives of each row, -1 where there are fewer


def assemble(
    pairs: TrainingPairs,
    rows: Rows,
    *,
    settings: BatchSettings,
    mined: Mined | None,
    rng: np.random.Generator,
) -> Batch:
    """Draw positives and hard negatives of `rows` and mark who is what to whom."""
    drawn = [_draw(_row(pairs.drawable, row), settings.positives, rng) for row in rows.tolist()]
    hard = np.zeros(0, np.int32)
    if mined is not None and settings.hard_negatives:
        hard = _draw_mined(mined[rows], settings.hard_negatives, rng)
    if settings.pool == "all":
        pool = np.arange(pairs.labels, dtype=np.int32)
    else:
        pool = np.unique(np.concatenate([*drawn, hard])).astype(np.int32)
    place = np.full(pairs.labels, -1, np.int64)
    place[pool] = np.arange(len(pool))
    positives = _marked(pairs.labels_of, rows, place, len(pool))
    filtered = _marked(pairs.filtered, rows, place, len(pool))
    sampled = np.zeros_like(positives)
    lines = np.repeat(np.arange(len(rows)), [len(own) for own in drawn])
    sampled[lines, place[np.concatenate(drawn)]] = True
    return Batch(
        rows=rows,
        pool=pool,
        sampled=sampled,
        positives=positives & ~filtered,
        negatives=~(positives | filtered),
        strangers=strangers(pairs.labels_of[rows]),
    )


def strangers(labels_of: csr_matrix) -> Bools:
    """Which instances of [B, L] share no label with which (Q of Eq. 10), [B, B]."""
    own = csr_matrix(labels_of != 0).astype(np.float32)
    shared = (own @ own.T).toarray()
    apart: Bools = shared == 0
    np.fill_diagonal(apart, False)
    return apart


def _row(matrix: csr_matrix, row: int) -> Indices:
    own: Indices = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
    return own


def _draw(own: Indices, count: int, rng: np.random.Generator) -> Indices:
    return own if len(own) <= count else rng.choice(own, size=count, replace=False)


def _draw_mined(mined: Mined, count: int, rng: np.random.Generator) -> Indices:
    """`count` of each row's mined labels, all rows together."""
    keys = rng.random(mined.shape)
    keys[mined < 0] = 2.0
    chosen = np.take_along_axis(mined, np.argsort(keys, axis=1, kind="stable")[:, :count], axis=1)
    return chosen[chosen >= 0]


def _marked(matrix: csr_matrix, rows: Rows, place: Rows, width: int) -> Bools:
    """The entries of matrix[rows] whose columns lie in the pool, [B, P]."""
    own = matrix[rows]
    lines = np.repeat(np.arange(len(rows)), np.diff(own.indptr))
    places = place[own.indices]
    inside = (places >= 0) & (own.data != 0)
    marked = np.zeros((len(rows), width), bool)
    marked[lines[inside], places[inside]] = True
    return marked
