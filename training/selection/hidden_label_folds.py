"""Folds of known labels that are treated as novel, and the held-out rows that measure them.

Shapes: L labels, f of them in a fold, c that are ranked, n rows, K places of a shortlist, d
dimensions.
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

FOLDS, MEASURED_FOLDS = 10, 3  # a fold has a tenth of the labels, as many as the papers hide
METRICS = {
    "P@1": partial(precision, k=1),
    "P@5": partial(precision, k=5),
    "R@30": partial(recall, k=30),
}
MOST_ROWS = 4_000  # held-out rows that measure a fold
DEEPEST = 100  # K of the longest shortlist
Figures = dict[str, float]  # of each of `METRICS`, in percent
_BLOCK = 1_024  # labels whose shortlists are in memory together


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFoldData:
    """Vectors from which labels are represented, and the held-out rows that measure the result.

    `queries` has one training query of each label, nan where a label has none; `asking` are the
    held-out rows.
    """

    texts: Floats  # [L, d], E(z_l)
    keys: Floats  # [L, d], label keys of the memory, searched for a shortlist
    classifiers: Floats  # [L, d], W
    queries: Floats  # [L, d]
    asking: Floats  # [n, d]
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]
    combine: Combine
    choices: Choices  # tau, lambda and b of the memory
    hidden: Rows  # labels that took no part in training


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldQueries:
    """Queries [n] and the labels [c] ranked for them: novel ones, and others already ranked."""

    asking: Floats  # [n, d]
    novel: Rows  # [f], their places among the c
    others: tuple[Floats, Rows] | None  # similarities and places of the best others, [n, k] each
    positives: csr_matrix  # [n, c]
    filtered: csr_matrix  # [n, c]

    def found(self, keys: Floats) -> Figures:
        """`METRICS` with these keys [f, d] of the novel labels."""
        count = labels_to_rank(self.filtered)
        scores, ranked = best(self.asking, keys, self.novel, count=count)
        if self.others is not None:
            scores = np.hstack([scores, self.others[0]])
            ranked = np.hstack([ranked, self.others[1]])
            scores, ranked = nearest(scores, ranked, count=count)
        return self.figures(ranked)

    def figures(self, ranked: Rows) -> Figures:
        """`METRICS` of a ranking [n, k] of places among the c."""
        outcome = ranking_outcome(ranked, self.positives, filtered=self.filtered)
        return {name: 100.0 * metric(outcome) for name, metric in METRICS.items()}


def best(asking: Floats, keys: Floats, columns: Rows, *, count: int) -> tuple[Floats, Rows]:
    """The nearest of keys [m, d] to each query, [n, count]: similarities and `columns` [m]."""
    row_filter = RowFilter(start=0, stop=len(keys))
    similarities, rows = exact_search(
        keys.astype(np.float16), asking, count=count, row_filter=row_filter
    )
    return similarities, np.where(rows < 0, -1, columns[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFold:
    """Labels [f] treated as novel, with their shortlists of the other labels."""

    texts: Floats  # [f, d]
    queries: Floats  # [f, d]
    among_novel: FoldQueries
    among_all: FoldQueries
    novel: NovelLabels
    listed: Shortlisted
    choices: Choices

    def combined(self, refinement: Refinement, *, revealed: bool) -> Floats:
        """C(u) [f, d]; with `revealed`, from a label's query as well as its text."""
        depth, scores = refinement.shortlist, self.listed.query_scores
        cut = Shortlisted(
            rows=self.listed.rows[:, :depth],
            similarities=self.listed.similarities[:, :depth],
            text_scores=self.listed.text_scores[:, :depth],
            query_scores=(scores if revealed else np.full_like(scores, np.nan))[:, :depth],
        )
        whole = replace(refinement, strength=1.0, query_weight=0.0, length=1.0, query_length=1.0)
        novel = replace(self.novel, refinement=whole)
        return novel.enriched(self.texts, self.queries, cut).vectors

    def keys(self, combined: Floats, refinement: Refinement, *, revealed: bool) -> Floats:
        """The labels' keys, [f, d], from C(u)."""
        queries = self.queries if revealed else np.full_like(self.queries, np.nan)
        return keys_from(self.texts, combined, queries, refinement)

    def found(self, keys: Floats, *, revealed: bool) -> Figures:
        """`METRICS` among the novel labels; with `revealed`, their queries vote as instances."""
        if not revealed:
            return self.among_novel.found(keys)
        clicked, choices = np.flatnonzero(np.isfinite(self.queries[:, 0])), self.choices
        memory = OfflineMemory(
            keys=np.concatenate([self.queries[clicked], keys]).astype(np.float16),
            labels_of=csr_matrix(identity(len(keys), np.float32, format="csr")[clicked]),
            label_ids=[f"{place:09}" for place in range(len(keys))],
        )
        count = labels_to_rank(self.among_novel.filtered)
        retrieved = memory.search(
            self.among_novel.asking,
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
        return self.among_novel.figures(ranked)


def folds(data: LabelFoldData, *, seed: int) -> Iterator[LabelFold]:
    """The hidden labels as one fold; without hidden labels, `MEASURED_FOLDS` of `FOLDS` folds.

    A fold is left out if no held-out row has a label of it, or no other label has a query.
    """
    with_query = np.flatnonzero(np.isfinite(data.queries[:, 0]))  # labels
    if len(data.hidden):
        folded = [data.hidden]
    else:
        drawn = np.random.default_rng([seed, 8]).permutation(with_query)
        folded = [np.sort(fold) for fold in np.array_split(drawn, FOLDS)[:MEASURED_FOLDS]]
    for labels in folded:
        others = np.setdiff1d(with_query, labels)
        among_novel = _queries_among_novel(data, labels, seed=seed)
        if among_novel is None or not len(others):
            continue
        novel = _represented_from(data, others)
        texts, queries = data.texts[labels], data.queries[labels]
        yield LabelFold(
            texts=texts,
            queries=queries,
            among_novel=among_novel,
            among_all=_queries_among_all(data, labels, others, seed=seed),
            novel=novel,
            listed=_listed(novel, texts, queries),
            choices=data.choices,
        )


def _queries_among_novel(data: LabelFoldData, labels: Rows, *, seed: int) -> FoldQueries | None:
    """Held-out rows with one of `labels`, which are ranked among themselves; None without rows."""
    positives = csr_matrix(data.positives[:, labels] != 0)
    filtered = csr_matrix(data.filtered[:, labels]).astype(bool)
    rows = np.flatnonzero((positives > positives.multiply(filtered)).getnnz(axis=1))
    if not len(rows):
        return None
    rows = _some(rows, seed=seed)
    return FoldQueries(
        asking=data.asking[rows],
        novel=np.arange(len(labels)),
        others=None,
        positives=positives[rows],
        filtered=filtered[rows],
    )


def _queries_among_all(
    data: LabelFoldData, labels: Rows, others: Rows, *, seed: int
) -> FoldQueries:
    """Held-out rows with any labels; `labels` are ranked together with `others`."""
    rows = _some(np.arange(len(data.asking)), seed=seed)
    asking, filtered = data.asking[rows], data.filtered[rows].astype(bool)
    return FoldQueries(
        asking=asking,
        novel=labels,
        others=best(asking, data.keys[others], others, count=labels_to_rank(filtered)),
        positives=csr_matrix(data.positives[rows] != 0),
        filtered=filtered,
    )


def _some(rows: Rows, *, seed: int) -> Rows:
    """At most `MOST_ROWS` random rows, ascending."""
    return np.sort(np.random.default_rng([seed, 11]).permutation(rows)[:MOST_ROWS])


def _represented_from(data: LabelFoldData, others: Rows) -> NovelLabels:
    """Represents labels by the classifiers and keys of `others`."""
    keys = data.keys[others]
    return NovelLabels(
        classifiers=data.classifiers[others],
        shortlist=partial(_shortlist, keys.astype(np.float16)),
        keys_of=keys.__getitem__,
        combine=data.combine,
        refinement=Refinement(shortlist=DEEPEST, text_threshold=0.0, query_threshold=0.0),
    )


def a_row_of_each(labels_of: csr_matrix, *, among: Rows, seed: int = 0) -> Rows:
    """A random row of `among` for each label, [L]; -1 where no row has the label."""
    rows_of = csc_matrix(labels_of[among] != 0)
    counts = np.diff(rows_of.indptr)
    places = (np.random.default_rng([seed, 9]).random(len(counts)) * counts).astype(np.int64)
    rows, some = np.full(len(counts), -1, np.int64), counts > 0
    rows[some] = among[rows_of.indices[(rows_of.indptr[:-1] + places)[some]]]
    return rows


def _listed(novel: NovelLabels, texts: Floats, queries: Floats) -> Shortlisted:
    """The shortlists of all labels, made block by block: a shortlist's classifiers are large."""
    blocks = [novel.shortlisted(texts[rows], queries[rows]) for rows in batches(len(texts), _BLOCK)]
    return Shortlisted(
        rows=np.concatenate([block.rows for block in blocks]),
        similarities=np.concatenate([block.similarities for block in blocks]),
        text_scores=np.concatenate([block.text_scores for block in blocks]),
        query_scores=np.concatenate([block.query_scores for block in blocks]),
    )


def _shortlist(keys: Halves, texts: Floats, count: int) -> tuple[Floats, Rows]:
    return exact_search(keys, texts, count=count, row_filter=RowFilter(start=0, stop=len(keys)))
