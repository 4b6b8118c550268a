"""Labels as if they were novel, and the training rows that ask for them, and for others.

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

FOLDS, ASKED = 10, 3  # a tenth of the labels each, as the papers hide them
METRICS = {
    "P@1": partial(precision, k=1),
    "P@5": partial(precision, k=5),
    "R@30": partial(recall, k=30),
}
MOST_ASKING = 4_000  # rows that ask for a fold, and rows that ask among all labels
DEEPEST = 100  # K of the longest shortlist
Figures = dict[str, float]  # of each of `METRICS`, in percent
_BLOCK = 1_024  # labels whose shortlists are looked at together


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFoldData:
    """What labels are represented from, and who asks for them.

    `queries` are a training query of each label, nan where it has none.
    """

    texts: Floats  # [L, d], E(z_l)
    keys: Floats  # [L, d], what stands for them in the memory and is searched for a shortlist
    classifiers: Floats  # [L, d], W
    queries: Floats  # [L, d]
    asking: Floats  # [n, d]
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]
    combine: Combine
    choices: Choices  # of the memory, where a posted query is a row beside the label's own
    hidden: Rows  # labels that nothing was trained with


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldQueries:
    """Labels [c] that are ranked for rows [n]: novel ones, and others whose ranking is known."""

    asking: Floats  # [n, d]
    novel: Rows  # [f] of the c
    others: tuple[Floats, Rows] | None  # the best of the others for each row, [n, k] each
    positives: csr_matrix  # [n, c]
    filtered: csr_matrix  # [n, c]

    def found(self, keys: Floats) -> Figures:
        """`METRICS`, in percent, with the novel labels' keys [f, d]."""
        count = labels_to_rank(self.filtered)
        scores, ranked = best(self.asking, keys, self.novel, count=count)
        if self.others is not None:
            scores = np.hstack([scores, self.others[0]])
            ranked = np.hstack([ranked, self.others[1]])
            scores, ranked = nearest(scores, ranked, count=count)
        return self.figures(ranked)

    def figures(self, ranked: Rows) -> Figures:
        """`METRICS`, in percent, of ranked places [n, k] of the c."""
        outcome = ranking_outcome(ranked, self.positives, filtered=self.filtered)
        return {name: 100.0 * metric(outcome) for name, metric in METRICS.items()}


def best(asking: Floats, keys: Floats, columns: Rows, *, count: int) -> tuple[Floats, Rows]:
    """Similarities and `columns` [k] of the best keys [k, d] for each row, [n, count]."""
    row_filter = RowFilter(start=0, stop=len(keys))
    similarities, rows = exact_search(
        keys.astype(np.float16), asking, count=count, row_filter=row_filter
    )
    return similarities, np.where(rows < 0, -1, columns[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFold:
    """Labels [f] as if they were novel; their shortlists of the others are made once."""

    texts: Floats  # [f, d]
    queries: Floats  # [f, d]
    among_novel: FoldQueries
    among_all: FoldQueries
    novel: NovelLabels
    listed: Shortlisted
    choices: Choices

    def combined(self, refinement: Refinement, *, revealed: bool) -> Floats:
        """C(u) [f, d], with or without its query."""
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
        """`METRICS` among novel labels by their keys [f, d]; queries vote beside, as is served."""
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


def folds(held_out: LabelFoldData, *, seed: int) -> Iterator[LabelFold]:
    """The hidden labels, or some folds of all, where a row has a label of theirs."""
    clicked = np.flatnonzero(np.isfinite(held_out.queries[:, 0]))  # those that have a query
    if len(held_out.hidden):
        cut = [held_out.hidden]
    else:
        drawn = np.random.default_rng([seed, 8]).permutation(clicked)
        cut = [np.sort(fold) for fold in np.array_split(drawn, FOLDS)[:ASKED]]
    for labels in cut:
        positives = csr_matrix(held_out.positives[:, labels] != 0)
        filtered = csr_matrix(held_out.filtered[:, labels]).astype(bool)
        asks = np.flatnonzero((positives > positives.multiply(filtered)).getnnz(axis=1))
        others = np.setdiff1d(clicked, labels)
        if not len(asks) or not len(others):
            continue
        rows, everyone = (
            np.sort(np.random.default_rng([seed, 11]).permutation(whole)[:MOST_ASKING])
            for whole in (asks, np.arange(len(held_out.asking)))
        )
        keys, classifiers = held_out.keys[others], held_out.classifiers[others]
        novel = NovelLabels(
            classifiers=classifiers,
            shortlist=partial(_shortlist, keys.astype(np.float16)),
            keys_of=keys.__getitem__,
            combine=held_out.combine,
            refinement=Refinement(shortlist=DEEPEST, text_threshold=0.0, query_threshold=0.0),
        )
        texts, queries = held_out.texts[labels], held_out.queries[labels]
        asking, everyones = held_out.asking[everyone], held_out.filtered[everyone].astype(bool)
        yield LabelFold(
            texts=texts,
            queries=queries,
            among_novel=FoldQueries(
                asking=held_out.asking[rows],
                novel=np.arange(len(labels)),
                others=None,
                positives=positives[rows],
                filtered=filtered[rows],
            ),
            among_all=FoldQueries(
                asking=asking,
                novel=labels,
                others=best(asking, keys, others, count=labels_to_rank(everyones)),
                positives=csr_matrix(held_out.positives[everyone] != 0),
                filtered=everyones,
            ),
            novel=novel,
            listed=_listed(novel, texts, queries),
            choices=held_out.choices,
        )


def a_row_of_each(labels_of: csr_matrix, *, among: Rows, seed: int = 0) -> Rows:
    """A row of `among`, drawn, of each label, [L]; -1 where a label has none."""
    rows_of = csc_matrix(labels_of[among] != 0)
    counts = np.diff(rows_of.indptr)
    places = (np.random.default_rng([seed, 9]).random(len(counts)) * counts).astype(np.int64)
    rows, some = np.full(len(counts), -1, np.int64), counts > 0
    rows[some] = among[rows_of.indices[(rows_of.indptr[:-1] + places)[some]]]
    return rows


def _listed(novel: NovelLabels, texts: Floats, queries: Floats) -> Shortlisted:
    """Block by block: a shortlist's classifiers are large."""
    blocks = [novel.shortlisted(texts[rows], queries[rows]) for rows in batches(len(texts), _BLOCK)]
    return Shortlisted(
        rows=np.concatenate([block.rows for block in blocks]),
        similarities=np.concatenate([block.similarities for block in blocks]),
        text_scores=np.concatenate([block.text_scores for block in blocks]),
        query_scores=np.concatenate([block.query_scores for block in blocks]),
    )


def _shortlist(keys: Halves, texts: Floats, count: int) -> tuple[Floats, Rows]:
    return exact_search(keys, texts, count=count, row_filter=RowFilter(start=0, stop=len(keys)))
