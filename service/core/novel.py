"""What a label that nobody has clicked yet is made from (IRENE, Yadav et al., Algorithm 1).

A novel label u has a text z_u and, one-shot, a query x_u that it was clicked for. Seen labels have
a classifier w_l beside their text; those of at most three that are like u join its text in the
combiner: C(u) = C(E(z_u), {w_l : l in S_u}).

Shapes: n novel labels, S seen labels with a classifier, K places of a shortlist, m associated
labels, d dimensions. Place and row -1 are empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.core.types import Bools, Floats, Rows

ASSOCIATED = 3  # at most: more did not help (section 4.1)

Shortlist = Callable[[Floats, int], tuple[Floats, Rows]]
Combine = Callable[[Floats, Floats, Bools], Floats]


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """K of the shortlist, and what a classifier must give a text (tau0) and a query (tau1)."""

    shortlist: int
    text_threshold: float
    query_threshold: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Represented:
    """C(u) [n, d], and what it was enriched by: rows of seen labels [n, m] and similarities."""

    vectors: Floats
    associated: Rows
    similarities: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelLabels:
    """Makes representations of novel labels.

    `shortlist(texts, K)` gives <E(z_l), E(z_u)> [n, K], descending, and rows of `classifiers`;
    `combine(texts [n, d], classifiers [n, m, d], present [n, m])` is C.
    """

    classifiers: NDArray[np.floating]  # W, [S, d] unit vectors
    shortlist: Shortlist
    combine: Combine
    refinement: Refinement

    def represent(self, texts: Floats, queries: Floats | None = None) -> Represented:
        """C(u) from E(z_u) [n, d] and, one-shot, E(x_u) [n, d], nan where there is no query.

        Of several queries give their mean: its score is the mean of their scores.
        """
        similarities, rows = self.shortlist(texts, self.refinement.shortlist)  # [n, K] each
        classifiers = np.asarray(self.classifiers[rows], np.float32)  # [n, K, d]
        places = associated_labels(
            similarities=np.where(rows < 0, -np.inf, similarities),
            text_scores=np.einsum("nd,nkd->nk", texts, classifiers),
            query_scores=None if queries is None else np.einsum("nd,nkd->nk", queries, classifiers),
            refinement=self.refinement,
        )
        present, taken = places >= 0, np.maximum(places, 0)
        chosen = np.take_along_axis(classifiers, taken[..., None], axis=1)  # [n, m, d]
        return Represented(
            vectors=self.combine(texts, chosen, present),
            associated=np.where(present, np.take_along_axis(rows, taken, axis=1), -1),
            similarities=np.where(present, np.take_along_axis(similarities, taken, axis=1), 0.0),
        )


def associated_labels(
    *,
    similarities: Floats,
    text_scores: Floats,
    query_scores: Floats | None,
    refinement: Refinement,
) -> Rows:
    """Places in the shortlist of those that survive, [n, m]; -1 where fewer do.

    The shortlist is given by its similarities <E(z_l), E(z_u)>, [n, K], descending, -inf in empty
    places, and by what its classifiers say: <w_l, E(z_u)> and, one-shot, <w_l, E(x_u)>, [n, K],
    nan for labels without a query.
    """
    agrees = refined(text_scores, threshold=refinement.text_threshold) & np.isfinite(similarities)
    votes = agrees.astype(np.int64)
    if query_scores is not None:
        votes += agrees & refined(query_scores, threshold=refinement.query_threshold)
    return most_voted(votes=votes, similarities=similarities, count=ASSOCIATED)


def refined(scores: Floats, *, threshold: float) -> Bools:
    """S_w: whose classifier scores at least the threshold; nan never does."""
    with np.errstate(invalid="ignore"):
        kept: Bools = scores >= threshold
    return kept


def most_voted(*, votes: Rows, similarities: Floats, count: int) -> Rows:
    """Places [n, count] with the most votes, of equal ones the nearest; -1 where none has any."""
    order = np.lexsort((-similarities, -votes), axis=1)[:, :count]  # [n, count]
    chosen = np.take_along_axis(votes, order, axis=1) > 0
    places: Rows = np.where(chosen, order, -1)
    missing = count - places.shape[1]
    return np.pad(places, ((0, 0), (0, missing)), constant_values=-1) if missing > 0 else places
