"""Folds of known labels that are treated as novel, and the held-out rows that measure them.

Shapes: L labels, f of them in a fold, c candidates (labels that are ranked), n rows, K labels in a
shortlist, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix, identity

from service.core.bundle.manifest import Refinement
from service.core.encoding.irene import (
    Combine,
    NovelLabels,
    Shortlisted,
    keys_from,
)
from service.core.index.exact import exact_search, nearest
from service.core.index.protocol import RowFilter, batches
from service.core.prediction.predictor import voting_kind
from service.core.types import Floats, Halves, Rows
from training.checkpoints.choices import Choices
from training.evaluation.metrics import labels_to_rank, precision, ranking_outcome, recall
from training.evaluation.prediction import OfflineMemory, predict

FOLDS, MEASURED_FOLDS = 10, 3  # a fold has a tenth of the labels, the share that the papers hide
METRICS = {
    "P@1": partial(precision, k=1),
    "P@5": partial(precision, k=5),
    "R@30": partial(recall, k=30),
}
MOST_ROWS = 4_000  # held-out rows that measure a fold
DEEPEST = 100  # K of the longest shortlist
Figures = dict[str, float]  # name in `METRICS` to percent
_BLOCK = 1_024  # labels whose shortlists are computed together


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFoldData:
    """Vectors from which labels are represented, and the held-out rows that measure the result.

    `label_queries` has one training query of each label, nan where a label has none.
    """

    texts: Floats  # [L, d], E(z_l)
    keys: Floats  # [L, d], label keys of the memory, searched for a shortlist
    classifiers: Floats  # [L, d], W
    label_queries: Floats  # [L, d]
    held_out_queries: Floats  # [n, d]
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]
    combine: Combine
    choices: Choices  # tau, lambda and b of the memory
    hidden: Rows  # labels that took no part in training


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldQueries:
    """Held-out queries, and the candidates that are ranked for them.

    Candidates are the novel labels of a fold and, unless `others` is None, all other labels. The
    others' keys never change, so `others` has them ranked already.
    """

    queries: Floats  # [n, d]
    novel: Rows  # [f], columns of the novel labels among the candidates
    others: tuple[Floats, Rows] | None  # similarities and columns of the nearest others, [n, k]
    positives: csr_matrix  # [n, c]
    filtered: csr_matrix  # [n, c]

    def measure(self, keys: Floats) -> Figures:
        """`METRICS` with these keys [f, d] of the novel labels."""
        count = labels_to_rank(self.filtered)
        scores, ranked = nearest_labels(self.queries, keys, self.novel, count=count)
        if self.others is not None:
            scores = np.hstack([scores, self.others[0]])
            ranked = np.hstack([ranked, self.others[1]])
            scores, ranked = nearest(scores, ranked, count=count)
        return self.measure_ranking(ranked)

    def measure_ranking(self, ranked: Rows) -> Figures:
        """`METRICS` of a ranking: columns of candidates, [n, k], best first."""
        outcome = ranking_outcome(ranked, self.positives, filtered=self.filtered)
        return {name: 100.0 * metric(outcome) for name, metric in METRICS.items()}


def nearest_labels(
    queries: Floats, keys: Floats, columns: Rows, *, count: int
) -> tuple[Floats, Rows]:
    """The nearest keys to each query: similarities and columns, [n, count] each.

    `keys` is [m, d]; `columns` [m] has the column of each key. Missing labels have column -1.
    """
    row_filter = RowFilter(start=0, stop=len(keys))
    similarities, rows = exact_search(
        keys.astype(np.float16), queries, count=count, row_filter=row_filter
    )
    return similarities, np.where(rows < 0, -1, columns[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFold:
    """Labels [f] treated as novel, and what is needed to compute and measure their keys.

    `revealed` in the methods says whether each label has a query besides its text.
    """

    texts: Floats  # [f, d]
    label_queries: Floats  # [f, d], nan where a label has none
    among_novel: FoldQueries
    among_all: FoldQueries
    novel: NovelLabels
    shortlists: Shortlisted  # of labels outside the fold
    choices: Choices

    def combined(self, refinement: Refinement, *, revealed: bool) -> Floats:
        """C(u) [f, d]; with `revealed`, from a label's query as well as its text."""
        length, scores = refinement.shortlist, self.shortlists.query_scores
        shortlists = Shortlisted(
            rows=self.shortlists.rows[:, :length],
            similarities=self.shortlists.similarities[:, :length],
            text_scores=self.shortlists.text_scores[:, :length],
            query_scores=(scores if revealed else np.full_like(scores, np.nan))[:, :length],
        )
        # With these numbers the enriched key is C(u) itself.
        only_combined = replace(
            refinement, strength=1.0, query_weight=0.0, length=1.0, query_length=1.0
        )
        novel = replace(self.novel, refinement=only_combined)
        return novel.enriched(self.texts, self.label_queries, shortlists).vectors

    def keys(self, combined: Floats, refinement: Refinement, *, revealed: bool) -> Floats:
        """The labels' keys, [f, d], from C(u)."""
        none = np.full_like(self.label_queries, np.nan)
        queries = self.label_queries if revealed else none
        return keys_from(self.texts, combined, queries, refinement)

    def measure(self, keys: Floats, *, revealed: bool) -> Figures:
        """`METRICS` among the novel labels; with `revealed`, their queries vote as instances."""
        if not revealed:
            return self.among_novel.measure(keys)
        choices = self.choices
        with_query = np.flatnonzero(np.isfinite(self.label_queries[:, 0]))
        memory = OfflineMemory(
            keys=np.concatenate([self.label_queries[with_query], keys]).astype(np.float16),
            labels_of=csr_matrix(identity(len(keys), np.float32, format="csr")[with_query]),
            label_ids=[f"{column:09}" for column in range(len(keys))],
        )
        count = labels_to_rank(self.among_novel.filtered)
        retrieved = memory.search(
            self.among_novel.queries,
            kind=voting_kind(choices.memorization),
            count=max(count, choices.depth),
        )
        ranked = predict(
            memory,
            retrieved,
            tau=choices.tau,
            memorization=choices.memorization,
            top_k=count,
            order=memory.label_order,
        ).labels
        return self.among_novel.measure_ranking(ranked)


def folds(data: LabelFoldData, *, seed: int) -> Iterator[LabelFold]:
    """The hidden labels as one fold; without hidden labels, `MEASURED_FOLDS` of `FOLDS` folds.

    A fold is skipped if no held-out row has a label of it, or no other label has a query.
    """
    with_query = np.flatnonzero(np.isfinite(data.label_queries[:, 0]))  # labels
    if len(data.hidden):
        label_folds = [data.hidden]
    else:
        drawn = np.random.default_rng([seed, 8]).permutation(with_query)
        label_folds = [np.sort(fold) for fold in np.array_split(drawn, FOLDS)[:MEASURED_FOLDS]]
    for labels in label_folds:
        others = np.setdiff1d(with_query, labels)
        among_novel = _queries_among_novel(data, labels, seed=seed)
        if among_novel is None or not len(others):
            continue
        novel = _represented_from(data, others)
        texts, label_queries = data.texts[labels], data.label_queries[labels]
        yield LabelFold(
            texts=texts,
            label_queries=label_queries,
            among_novel=among_novel,
            among_all=_queries_among_all(data, labels, others, seed=seed),
            novel=novel,
            shortlists=_shortlists(novel, texts, label_queries),
            choices=data.choices,
        )


def _queries_among_novel(data: LabelFoldData, labels: Rows, *, seed: int) -> FoldQueries | None:
    """Held-out rows that have one of `labels`, the candidates; None if there is no such row."""
    positives = csr_matrix(data.positives[:, labels] != 0)
    filtered = csr_matrix(data.filtered[:, labels]).astype(bool)
    rows = np.flatnonzero((positives > positives.multiply(filtered)).getnnz(axis=1))
    if not len(rows):
        return None
    rows = _sample(rows, seed=seed)
    return FoldQueries(
        queries=data.held_out_queries[rows],
        novel=np.arange(len(labels)),
        others=None,
        positives=positives[rows],
        filtered=filtered[rows],
    )


def _queries_among_all(
    data: LabelFoldData, labels: Rows, others: Rows, *, seed: int
) -> FoldQueries:
    """Held-out rows with any labels; candidates are `labels` and `others`."""
    rows = _sample(np.arange(len(data.held_out_queries)), seed=seed)
    queries, filtered = data.held_out_queries[rows], data.filtered[rows].astype(bool)
    return FoldQueries(
        queries=queries,
        novel=labels,
        others=nearest_labels(queries, data.keys[others], others, count=labels_to_rank(filtered)),
        positives=csr_matrix(data.positives[rows] != 0),
        filtered=filtered,
    )


def _sample(rows: Rows, *, seed: int) -> Rows:
    """At most `MOST_ROWS` random rows, ascending."""
    return np.sort(np.random.default_rng([seed, 11]).permutation(rows)[:MOST_ROWS])


def _represented_from(data: LabelFoldData, others: Rows) -> NovelLabels:
    """Algorithm 1 for novel labels, with the classifiers and keys of `others`."""
    keys = data.keys[others]
    return NovelLabels(
        classifiers=data.classifiers[others],
        shortlist=partial(_shortlist, keys.astype(np.float16)),
        keys_of=keys.__getitem__,
        combine=data.combine,
        refinement=Refinement(shortlist=DEEPEST, text_threshold=0.0, query_threshold=0.0),
    )


def row_of_each_label(labels_of: csr_matrix, *, among: Rows, seed: int = 0) -> Rows:
    """A random row of `among` for each label, [L]; -1 where no row has the label."""
    rows_of = csc_matrix(labels_of[among] != 0)
    counts = np.diff(rows_of.indptr)
    drawn = (np.random.default_rng([seed, 9]).random(len(counts)) * counts).astype(np.int64)
    rows, has_row = np.full(len(counts), -1, np.int64), counts > 0
    rows[has_row] = among[rows_of.indices[(rows_of.indptr[:-1] + drawn)[has_row]]]
    return rows


def _shortlists(novel: NovelLabels, texts: Floats, queries: Floats) -> Shortlisted:
    """The labels' shortlists, computed by blocks because a shortlist's classifiers are large."""
    blocks = [novel.shortlisted(texts[rows], queries[rows]) for rows in batches(len(texts), _BLOCK)]
    return Shortlisted(
        rows=np.concatenate([block.rows for block in blocks]),
        similarities=np.concatenate([block.similarities for block in blocks]),
        text_scores=np.concatenate([block.text_scores for block in blocks]),
        query_scores=np.concatenate([block.query_scores for block in blocks]),
    )


def _shortlist(keys: Halves, texts: Floats, count: int) -> tuple[Floats, Rows]:
    return exact_search(keys, texts, count=count, row_filter=RowFilter(start=0, stop=len(keys)))
