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
from service.core.index.exact import exact_search
from service.core.index.found_rows import nearest
from service.core.index.protocol import RowFilter, batches
from service.core.prediction.predictor import voting_kind
from service.core.types import Floats, Halves, Rows
from training.checkpoints.choices import Choices
from training.evaluation.metrics import labels_to_rank, precision, ranking_outcome, recall
from training.evaluation.prediction import OfflineMemory

FOLDS, MEASURED_FOLDS = 10, 3  # each fold has a tenth of the labels, the share that the papers hide
METRICS = {
    "P@1": partial(precision, k=1),
    "P@5": partial(precision, k=5),
    "R@30": partial(recall, k=30),
}
MOST_ROWS = 4_000  # held-out rows that measure each fold
DEEPEST = 100  # labels in the longest shortlist (K)
Figures = dict[str, float]  # metric's name (one of `METRICS`) -> percent
_BLOCK = 1_024  # labels whose shortlists are computed in one step


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFoldData:
    """Vectors from which labels are represented, and the held-out rows that measure the result.

    `label_queries` has one training query per label, and nan for a label without one.
    """

    texts: Floats  # [L, d], E(z_l)
    keys: Floats  # [L, d], the memory's label keys, in which shortlists are searched
    classifiers: Floats  # [L, d], W
    label_queries: Floats  # [L, d]
    held_out_queries: Floats  # [n, d]
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]
    combine: Combine
    choices: Choices  # tau, lambda and b of the memory
    hidden: Rows  # labels that were left out of training


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldQueries:
    """Held-out queries, and the candidate labels that are ranked for them.

    Candidates are the novel labels of a fold and, unless `others` is None, all other labels. The
    keys of the others never change, so `others` holds their ranking already.
    """

    queries: Floats  # [n, d]
    novel: Rows  # [f], positions of the novel labels among the candidates
    others: tuple[Floats, Rows] | None  # similarities and positions of the nearest others, [n, k]
    positives: csr_matrix  # [n, c]
    filtered: csr_matrix  # [n, c]

    def measure(self, keys: Floats) -> Figures:
        """`METRICS` if the novel labels have these keys [f, d]."""
        count = labels_to_rank(self.filtered)
        scores, ranked = nearest_labels(self.queries, keys, self.novel, count=count)
        if self.others is not None:
            scores = np.hstack([scores, self.others[0]])
            ranked = np.hstack([ranked, self.others[1]])
            scores, ranked = nearest(scores, ranked, count=count)
        return self.measure_ranking(ranked)

    def measure_ranking(self, ranked: Rows) -> Figures:
        """`METRICS` of a ranking: positions of candidates, [n, k], best first."""
        outcome = ranking_outcome(ranked, self.positives, filtered=self.filtered)
        return {name: 100.0 * metric(outcome) for name, metric in METRICS.items()}


def nearest_labels(
    queries: Floats, keys: Floats, columns: Rows, *, count: int
) -> tuple[Floats, Rows]:
    """The nearest keys to each query: their similarities and columns, [n, count] each.

    `keys` is [m, d], and `columns` [m] has the column of each key. Missing labels have column -1.
    """
    row_filter = RowFilter(start=0, stop=len(keys))
    similarities, rows = exact_search(
        keys.astype(np.float16), queries, count=count, row_filter=row_filter
    )
    return similarities, np.where(rows < 0, -1, columns[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFold:
    """Labels [f] treated as novel, and the data needed to compute and measure their keys.

    In the methods, `revealed` says whether each label has a query in addition to its text.
    """

    texts: Floats  # [f, d]
    label_queries: Floats  # [f, d], nan for a label without one
    among_novel: FoldQueries
    among_all: FoldQueries
    novel: NovelLabels
    shortlists: Shortlisted  # from the labels outside the fold
    choices: Choices

    def combined(self, refinement: Refinement, *, revealed: bool) -> Floats:
        """C(u) [f, d]. With `revealed`, it is computed from a label's query as well as its text."""
        length = refinement.shortlist
        parts = {name: part[:, :length] for name, part in vars(self.shortlists).items()}
        if not revealed:
            parts["query_scores"] = np.full_like(parts["query_scores"], np.nan)
        shortlists = Shortlisted(**parts)
        # With these settings the enriched key equals C(u).
        only_combined = replace(
            refinement, strength=1.0, query_weight=0.0, length=1.0, query_length=1.0
        )
        novel = replace(self.novel, refinement=only_combined)
        return novel.enriched(self.texts, self.label_queries, shortlists).vectors

    def keys(self, combined: Floats, refinement: Refinement, *, revealed: bool) -> Floats:
        """The keys of the labels, [f, d], computed from C(u)."""
        none = np.full_like(self.label_queries, np.nan)
        queries = self.label_queries if revealed else none
        return keys_from(self.texts, combined, queries, refinement)

    def measure(self, keys: Floats, *, revealed: bool) -> Figures:
        """`METRICS` among the novel labels. With `revealed`, their queries vote as instances."""
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
        ranked = memory.ranked(retrieved, choices, top_k=count).labels
        return self.among_novel.measure_ranking(ranked)


def folds(data: LabelFoldData, *, seed: int) -> Iterator[LabelFold]:
    """The hidden labels as one fold. Without hidden labels, `MEASURED_FOLDS` of `FOLDS` folds.

    A fold is skipped if no held-out row has a label of it, or if no other label has a query.
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
    """Held-out rows with at least one of `labels`, the only candidates; None if there are none."""
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
    """Held-out rows with labels of any kind; the candidates are `labels` and `others`."""
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
    """Apply Algorithm 1 to novel labels, with the classifiers and keys of `others`."""
    keys = data.keys[others]
    return NovelLabels(
        classifiers=data.classifiers[others],
        shortlist=partial(_shortlist, keys.astype(np.float16)),
        keys_of=keys.__getitem__,
        combine=data.combine,
        refinement=Refinement(shortlist=DEEPEST, text_threshold=0.0, query_threshold=0.0),
    )


def row_of_each_label(labels_of: csr_matrix, *, among: Rows, seed: int = 0) -> Rows:
    """A random row of `among` for each label, [L]; -1 if no row has the label."""
    rows_of = csc_matrix(labels_of[among] != 0)
    counts = np.diff(rows_of.indptr)
    drawn = (np.random.default_rng([seed, 9]).random(len(counts)) * counts).astype(np.int64)
    rows, has_row = np.full(len(counts), -1, np.int64), counts > 0
    rows[has_row] = among[rows_of.indices[(rows_of.indptr[:-1] + drawn)[has_row]]]
    return rows


def _shortlists(novel: NovelLabels, texts: Floats, queries: Floats) -> Shortlisted:
    """The shortlists of the labels, computed in blocks because their classifiers are large."""
    blocks = [novel.shortlisted(texts[rows], queries[rows]) for rows in batches(len(texts), _BLOCK)]
    parts = vars(blocks[0])
    return Shortlisted(
        **{name: np.concatenate([vars(block)[name] for block in blocks]) for name in parts}
    )


def _shortlist(keys: Halves, texts: Floats, count: int) -> tuple[Floats, Rows]:
    return exact_search(keys, texts, count=count, row_filter=RowFilter(start=0, stop=len(keys)))
