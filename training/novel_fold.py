"""Labels as if they were novel, and the training rows that ask for them.

Shapes: L labels, f of them in a fold, n rows, K places of a shortlist, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from service.core.index import RowFilter, batches
from service.core.index.exact import exact_search
from service.core.novel import (
    Combine,
    NovelLabels,
    Refinement,
    Shortlisted,
    leaning,
    moved,
)
from service.core.types import Floats, Halves, Rows
from training.metrics import evaluate
from training.validation import RANKED

FOLDS, ASKED = 10, 3  # a tenth of the labels each, as the papers hide them
METRICS = ("P@1", "P@5", "R@30")
MOST_ASKING = 4_000  # rows that ask for a fold
DEEPEST = 200  # K of the longest shortlist
_BLOCK = 1_024  # labels whose shortlists are looked at together


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
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
    hidden: Rows  # labels that nothing was trained with


@dataclass(frozen=True, kw_only=True, eq=False)
class Fold:
    """Labels [f] as if they were novel; their shortlists of the others are made once."""

    texts: Floats  # [f, d]
    queries: Floats  # [f, d]
    asking: Floats  # [n, d]
    positives: csr_matrix  # [n, f]
    filtered: csr_matrix  # [n, f]
    novel: NovelLabels
    listed: Shortlisted

    def combined(self, refinement: Refinement, *, revealed: bool) -> Floats:
        """C(u) [f, d], before strength and query weight, with or without its query."""
        depth, scores = refinement.shortlist, self.listed.query_scores
        cut = Shortlisted(
            rows=self.listed.rows[:, :depth],
            similarities=self.listed.similarities[:, :depth],
            text_scores=self.listed.text_scores[:, :depth],
            query_scores=(scores if revealed else np.full_like(scores, np.nan))[:, :depth],
        )
        plain = replace(self.novel, refinement=replace(refinement, strength=1.0, query_weight=0.0))
        return plain.enriched(self.texts, self.queries, cut).vectors

    def keys(self, combined: Floats, refinement: Refinement, *, revealed: bool) -> Floats:
        """The labels' keys, [f, d], from C(u)."""
        keys = moved(self.texts, combined, strength=refinement.strength)
        if not revealed:
            return keys
        return leaning(keys, self.queries, weight=refinement.query_weight)

    def found(self, keys: Floats) -> float:
        """The mean of `METRICS`, in percent, with these keys [f, d]."""
        _, ranked = exact_search(
            keys.astype(np.float16),
            self.asking,
            count=RANKED + int(np.diff(self.filtered.indptr).max(initial=0)),
            among=RowFilter(start=0, stop=len(keys)),
        )
        metrics = evaluate(
            ranked,
            self.positives,
            inverse_propensities=np.ones(len(keys)),
            filtered=self.filtered,
        )
        return float(np.mean([metrics[name] for name in METRICS]))


def folds(held_out: HeldOut, *, seed: int) -> Iterator[Fold]:
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
        rows = np.sort(np.random.default_rng([seed, 11]).permutation(asks)[:MOST_ASKING])
        others = np.setdiff1d(clicked, labels)
        if not len(rows) or not len(others):
            continue
        novel = NovelLabels(
            classifiers=held_out.classifiers[others],
            shortlist=partial(_shortlist, held_out.keys[others].astype(np.float16)),
            combine=held_out.combine,
            refinement=Refinement(shortlist=DEEPEST, text_threshold=0.0, query_threshold=0.0),
        )
        texts, queries = held_out.texts[labels], held_out.queries[labels]
        yield Fold(
            texts=texts,
            queries=queries,
            asking=held_out.asking[rows],
            positives=positives[rows],
            filtered=filtered[rows],
            novel=novel,
            listed=_listed(novel, texts, queries),
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
    return exact_search(keys, texts, count=count, among=RowFilter(start=0, stop=len(keys)))
