"""Queries, their labels ranked by a run's memory (as pairs), and the pairs' new order.

Shapes: n queries, M pairs of all queries, m of them candidates, N rows of the memory, L labels, d
dimensions, b retrieved keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Bools, Doubles, Floats, Rows
from training.checkpoints.choices import Choices
from training.evaluation.metrics import labels_to_rank
from training.evaluation.prediction import Neighbours, OfflineMemory, Ranked, RankedLabels
from training.reranking.finished_run import FinishedRun
from training.scoring import Scoring
from training.selection.validation import HeldOutRetrieval


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Pairs of a query and a label; the pairs of a query are adjacent, in the memory's order."""

    queries: Rows  # [M] numbers of queries, ascending
    labels: Rows  # [M] columns of labels
    votes: Doubles  # [M], the memory's scores (Eq. 7)
    count: int  # n, the number of queries

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Rows:
        """Return the number of pairs of each query that has any."""
        return np.unique(self.queries, return_counts=True)[1]

    @property
    def ranks(self) -> Rows:
        """Return the rank of each pair in the memory's order, from 0."""
        counts = self.counts
        return np.arange(len(self.queries)) - np.repeat(counts.cumsum() - counts, counts)

    def only(self, keep: Rows | Bools) -> Pairs:
        """The pairs at these ascending positions, or those that this mask selects."""
        return Pairs(
            queries=self.queries[keep],
            labels=self.labels[keep],
            votes=self.votes[keep],
            count=self.count,
        )

    def ranked_by(self, scores: Doubles, *, top_k: int, order: Rows) -> Ranked:
        """The labels of each query by descending scores [M], [n, top_k], padded with -1.

        Equal scores are ordered by label id, as in the service.
        """
        best = np.lexsort((order[self.labels], -scores, self.queries))
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
    """The entry of `table` [n, L] for each pair, [M]; 0 if it has none."""
    found: Doubles = np.asarray(table[pairs.queries, pairs.labels], np.float64).ravel()
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Queries:
    """Queries, their true labels, and the keys that vote for them by the run's own settings."""

    texts: Sequence[str]  # [n]
    vectors: Floats  # [n, d]
    choices: Choices
    memory: OfflineMemory
    retrieved: Neighbours  # [n, b] nearest keys
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def top_k(self) -> int:
        """How many labels per query the metrics need."""
        return labels_to_rank(self.filtered)

    def ranked(self, count: int) -> RankedLabels:
        """The `count` labels that the memory ranks first, or all if there are fewer."""
        top_k = min(count, self.memory.labels_of.shape[1])
        return self.memory.ranked(self.retrieved, self.choices, top_k=top_k)


def queries_held_out(run: FinishedRun, held: HeldOutRetrieval, scoring: Scoring) -> Queries:
    """The rows that the run holds out, as queries."""
    rows, choices = run.slices.held_out, scoring.choices
    texts = run.dataset.train.instances.texts
    return Queries(
        texts=[texts[row] for row in rows.tolist()],
        vectors=scoring.memory.keys[rows].astype(np.float32),
        choices=choices,
        memory=held.memory,
        retrieved=held.retrieved.of_choices(choices),
        positives=held.positives,
        filtered=held.filtered,
    )


def queries_of_test(scoring: Scoring) -> Queries:
    """The test rows, as queries."""
    test, choices = scoring.dataset.test, scoring.choices
    return Queries(
        texts=test.instances.texts,
        vectors=scoring.queries,
        choices=choices,
        memory=scoring.memory,
        retrieved=scoring.retrieved.of_choices(choices),
        positives=test.labels_of,
        filtered=test.filtered,
    )
