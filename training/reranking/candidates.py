"""The labels that a memory ranks first for each query: what is ranked again.

Shapes: n queries, k candidates of a query at most, m candidates of all queries, L labels, d
dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Doubles, Floats, Rows
from training.checkpoints.choices import Choices
from training.evaluation.prediction import OfflineMemory, Ranked, RetrievedKeys, predict

PER_QUERY = 300  # candidates


@dataclass(frozen=True, kw_only=True, eq=False)
class Queries:
    """Queries with what they retrieved from a memory."""

    texts: Sequence[str]  # [n]
    vectors: Floats  # [n, d]
    memory: OfflineMemory
    retrieved: RetrievedKeys
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Pairs of a query and a label, the pairs of a query together and in the memory's order."""

    queries: Rows  # [m], ascending
    labels: Rows  # [m]
    scores: Doubles  # [m], the memory's (Eq. 7)
    count: int  # n

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def starts(self) -> Rows:
        """The first pair of each query that has candidates."""
        return np.nonzero(np.diff(self.queries, prepend=-1))[0]

    @property
    def counts(self) -> Rows:
        """How many candidates each of these queries has."""
        return np.diff(self.starts, append=len(self.queries))

    @property
    def ranks(self) -> Rows:
        """The place of each pair in the memory's order, from 0 on."""
        return np.arange(len(self.queries)) - np.repeat(self.starts, self.counts)

    def share_of_best(self, values: Doubles) -> Doubles:
        """Values [m] of at least 0 as shares of their query's greatest."""
        shares: Doubles = values / np.maximum(self._best(values), 1e-12)
        return shares

    def below_best(self, values: Doubles) -> Doubles:
        """How far values [m] are below their query's greatest."""
        return values - self._best(values)

    def only(self, keep: Rows) -> Candidates:
        """The pairs at these ascending places."""
        return Candidates(
            queries=self.queries[keep],
            labels=self.labels[keep],
            scores=self.scores[keep],
            count=self.count,
        )

    def ranked_by(self, scores: Doubles, *, top_k: int) -> Ranked:
        """The labels of each query by descending scores [m], [n, top_k], -1 behind the last.

        Equal scores keep the memory's order.
        """
        order = np.lexsort((-scores, self.queries))  # stable, and queries stay where they are
        ranked = np.full((self.count, top_k), -1, np.int64)
        kept = self.ranks < top_k
        ranked[self.queries[kept], self.ranks[kept]] = self.labels[order][kept]
        return ranked

    def _best(self, values: Doubles) -> Doubles:
        return np.repeat(np.maximum.reduceat(values, self.starts), self.counts)


def entries(table: csr_matrix, candidates: Candidates) -> Doubles:
    """The entry of [n, L] for each pair, [m]; 0 where there is none."""
    found: Doubles = np.asarray(table[candidates.queries, candidates.labels], np.float64).ravel()
    return found


def candidates_of(queries: Queries, choices: Choices, *, per_query: int = PER_QUERY) -> Candidates:
    """The best labels of each query by a run's temperature, lambda and b."""
    ranked = predict(
        queries.memory,
        queries.retrieved.voting(choices.memorization, choices.depth),
        tau=choices.tau,
        memorization=choices.memorization,
        top_k=min(per_query, queries.memory.labels_of.shape[1]),
        order=queries.memory.label_order,
    )
    found, places = np.nonzero(ranked.labels >= 0)
    return Candidates(
        queries=found.astype(np.int64),
        labels=ranked.labels[found, places],
        scores=ranked.scores[found, places],
        count=len(queries),
    )
