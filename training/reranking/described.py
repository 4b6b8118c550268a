"""Computes all features of the queries' candidates, as the service does.

Metadata items of queries and labels can add further features, which the service does not have.

Shapes: n queries, M ranked pairs, m of them candidates, F features, N rows of the memory, L labels,
T metadata items.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.preprocessing import normalize

from service.core.index.protocol import batches
from service.core.prediction.reranking.features import FEATURES, features_of
from service.core.prediction.reranking.text_overlap import TextComparison, WordRarity
from service.core.types import Bools, Doubles, Floats
from training.datasets.dataset import Dataset
from training.datasets.propensity import label_frequency
from training.evaluation.prediction import Ranked, candidates_of
from training.reranking.candidates import Pairs, Queries, entries, pairs_of
from training.reranking.finished_run import FinishedRun

_TOGETHER = 65_536  # pairs whose items are compared in one step


@dataclass(frozen=True, kw_only=True, eq=False)
class Described:
    """Queries, their ranked pairs, and the `features` [m, F] of those that are candidates."""

    queries: Queries
    pairs: Pairs
    is_candidate: Bools  # [M]
    names: tuple[str, ...]  # [F]
    features: Floats

    @cached_property
    def candidates(self) -> Pairs:
        """The pairs that have features."""
        return self.pairs.only(self.is_candidate)

    @cached_property
    def positive(self) -> Bools:
        """Whether each candidate is a true label of its query, [m]."""
        positive: Bools = entries(self.queries.positives != 0, self.candidates) != 0
        return positive

    @cached_property
    def counted(self) -> Bools:
        """Whether each candidate counts, [m]; filtered ones do not."""
        counted: Bools = entries(self.queries.filtered != 0, self.candidates) == 0
        return counted

    def ranked_by_votes(self) -> Ranked:
        """The labels in the memory's own order."""
        return self._ranked(self.pairs.votes)

    def ranked_by(self, sums: Doubles) -> Ranked:
        """The best labels of each query, by the sum of the trees for each candidate [m].

        Labels that are no candidates follow in the memory's order.
        """
        scores = np.empty(len(self.pairs))
        scores[self.is_candidate] = sums
        ranks = self.pairs.ranks[~self.is_candidate]
        scores[~self.is_candidate] = sums.min(initial=0.0) - 1.0 - ranks
        return self._ranked(scores)

    def _ranked(self, scores: Doubles) -> Ranked:
        order = self.queries.memory.label_order
        return self.pairs.ranked_by(scores, top_k=self.queries.top_k, order=order)


def describe(
    queries: Queries, rarity: WordRarity, *, candidates: int, items: Items | None = None
) -> Described:
    """Describe the `candidates` best labels of each query; `items` adds features of metadata."""
    ranked, compare = queries.ranked(max(candidates, queries.top_k)), TextComparison()
    pairs = pairs_of(ranked)
    is_candidate = pairs.ranks < candidates
    found = [np.zeros((0, len(FEATURES)), np.float32)]
    for one in candidates_of(queries.texts, queries.vectors, queries.retrieved, ranked):
        best = one.first(candidates)
        if len(best.columns):
            found.append(features_of(best, queries.memory, rarity=rarity, compare=compare))
    features, names = np.concatenate(found), FEATURES
    if items is not None:
        of_items = item_features(items, queries.memory.labels_of, pairs.only(is_candidate))
        columns = [values.astype(np.float32)[:, None] for values in of_items.values()]
        features, names = np.hstack([features, *columns]), (*FEATURES, *of_items)
    return Described(
        queries=queries, pairs=pairs, is_candidate=is_candidate, names=names, features=features
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """The metadata items of queries, labels and instances, as linked in the data set."""

    queries: csr_matrix  # [n, T]
    labels: csr_matrix  # [L, T]
    instances: csr_matrix  # [N, T]


def item_features(items: Items, labels_of: csr_matrix, candidates: Pairs) -> dict[str, Doubles]:
    """Return features by name, [m] each; `labels_of` [N, L] are the labels of the memory's rows."""
    ours, theirs = (
        csr_matrix(table != 0, dtype=np.float64) for table in (items.queries, items.labels)
    )
    # The inverse frequency of each item among labels, [T].
    weights = np.log((1.0 + theirs.shape[0]) / (1.0 + label_frequency(theirs)))
    common = _overlap(ours, theirs, weights, candidates)
    of_query = (ours @ weights)[candidates.queries]
    of_label = (theirs @ weights)[candidates.labels]
    # The cosine between the query's items and the items of the rows that have the label.
    of_rows = csr_matrix((labels_of != 0).T.astype(np.float64) @ (items.instances != 0))  # [L, T]
    profiles = normalize(of_rows.multiply(np.sqrt(weights)).tocsr())
    of_queries = normalize(ours.multiply(np.sqrt(weights)).tocsr())
    return {
        "items in common": common,
        "items of the label in the query": common / np.maximum(of_label, 1e-9),
        "items of the query in the label": common / np.maximum(of_query, 1e-9),
        "items of the query": of_query,
        "items of the label's rows": _overlap(
            of_queries, profiles, np.ones(len(weights)), candidates
        ),
    }


def _overlap(ours: csr_matrix, theirs: csr_matrix, weights: Doubles, candidates: Pairs) -> Doubles:
    """The total weight of the items that a candidate's query [n, T] and label [L, T] share, [m]."""
    common = np.zeros(len(candidates))
    for part in batches(len(common), _TOGETHER):
        of_queries = ours[candidates.queries[part]]
        common[part] = of_queries.multiply(theirs[candidates.labels[part]]) @ weights
    return common


def items_held_out(run: FinishedRun) -> Items:
    """The items of the held-out rows, the labels, and the rows of their memory."""
    of_rows, slices = run.dataset.train.metadata_of, run.slices
    assert of_rows is not None
    return Items(
        queries=of_rows[slices.held_out],
        labels=run.dataset.label_metadata,
        instances=of_rows[slices.kept],
    )


def items_of_test(dataset: Dataset) -> Items:
    """The items of the test rows, the labels, and all training rows."""
    return Items(
        queries=dataset.test.metadata_of,
        labels=dataset.label_metadata,
        instances=dataset.train.metadata_of,
    )
