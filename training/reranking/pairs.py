"""Pairs of a query and a label that a memory ranks for it, and their new order.

Shapes: n queries, M pairs of all queries, m of them candidates, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.prediction.many_queries import LabelOrder, RankedLabels
from service.core.types import Bools, Doubles, Rows
from training.evaluation.prediction import Ranked


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """The pairs of a query lie together, in the memory's order."""

    queries: Rows  # [M], ascending
    labels: Rows  # [M]
    votes: Doubles  # [M], the memory's scores (Eq. 7)
    count: int  # n

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def starts(self) -> Rows:
        """The first pair of each query that has one."""
        return np.nonzero(np.diff(self.queries, prepend=-1))[0]

    @property
    def counts(self) -> Rows:
        """How many pairs each of these queries has."""
        return np.diff(self.starts, append=len(self.queries))

    @property
    def ranks(self) -> Rows:
        """The place of each pair in the memory's order, from 0 on."""
        return np.arange(len(self.queries)) - np.repeat(self.starts, self.counts)

    def only(self, keep: Rows | Bools) -> Pairs:
        """The pairs at these ascending places, or of this mask."""
        return Pairs(
            queries=self.queries[keep],
            labels=self.labels[keep],
            votes=self.votes[keep],
            count=self.count,
        )

    def ranked_by(self, scores: Doubles, *, top_k: int, order: LabelOrder) -> Ranked:
        """The labels of each query by descending scores [M], [n, top_k], -1 behind the last.

        Equal scores are in order of label id, as in a service.
        """
        best = np.lexsort((order.rank_of_label[self.labels], -scores, self.queries))
        ranked = np.full((self.count, top_k), -1, np.int64)
        kept = self.ranks < top_k
        ranked[self.queries[kept], self.ranks[kept]] = self.labels[best][kept]
        return ranked


def pairs_of(ranked: RankedLabels) -> Pairs:
    """The labels [n, k] that a memory ranks for queries, as pairs."""
    queries, places = np.nonzero(ranked.labels >= 0)
    return Pairs(
        queries=queries.astype(np.int64),
        labels=ranked.labels[queries, places],
        votes=ranked.scores[queries, places],
        count=len(ranked.labels),
    )


def entries(table: csr_matrix, pairs: Pairs) -> Doubles:
    """The entry of [n, L] for each pair, [M]; 0 where there is none."""
    found: Doubles = np.asarray(table[pairs.queries, pairs.labels], np.float64).ravel()
    return found
