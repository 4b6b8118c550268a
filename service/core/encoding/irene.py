"""What a label that nobody has clicked yet is made from (IRENE, Yadav et al., Algorithm 1).

A novel label u has a text z_u and, one-shot, a query x_u that it was clicked for. Seen labels have
a classifier w_l beside their text; those of at most three that are like u join its text in the
combiner: C(u) = C(E(z_u), {w_l : l in S_u}).

Ours, where a bundle chose it: all that survive join it as one vector, their classifiers' mean
weighted by how near they are (Nadaraya and Watson's estimate of w_u, over texts), or the mean of
what their classifiers have beyond their texts, w_l - z_l: u is moved as those like it were, and not
towards them. Classifiers lie nearer to queries than texts do, and so would novel labels among seen
ones, which stand by their texts: a novel label's key is shorter than 1, which takes the same share
off all its scores (calibrated stacking, Chao et al. 2016, as a factor).

Shapes: n novel labels, S seen labels with a classifier, K places of a shortlist, m associated
labels, d dimensions. Place and row -1 are empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.manifest import Refinement
from service.core.index.protocol import batches
from service.core.types import Bools, Floats, Rows

ASSOCIATED = 3  # at most: more did not help (section 4.1)
_BLOCK = 1_024  # labels whose shortlists' classifiers are looked at together

Shortlist = Callable[[Floats, int], tuple[Floats, Rows]]
KeysOf = Callable[[Rows], NDArray[np.floating]]
Combine = Callable[[Floats, Floats, Bools], Floats]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shortlisted:
    """Of each novel label K seen ones, [n, K], descending by <E(z_l), E(z_u)>; row -1 is empty.

    `text_scores` are <w_l, E(z_u)>, `query_scores` <w_l, E(x_u)>, nan without a query.
    """

    rows: Rows
    similarities: Floats
    text_scores: Floats
    query_scores: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Represented:
    """Keys [n, d], and what they were enriched by: rows of seen labels [n, m], similarities.

    Of many that were pooled they are the first.
    """

    vectors: Floats
    associated: Rows
    similarities: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelLabels:
    """Makes representations of novel labels.

    `shortlist(texts, K)` gives <E(z_l), E(z_u)> [n, K], descending, and rows of `classifiers`,
    `keys_of(rows [n, K])` the keys [n, K, d] of these;
    `combine(texts [n, d], classifiers [n, m, d], present [n, m])` is C.
    """

    classifiers: NDArray[np.floating]  # W, [S, d] unit vectors
    shortlist: Shortlist
    keys_of: KeysOf
    combine: Combine
    refinement: Refinement

    def represent(self, texts: Floats, queries: Floats | None = None) -> Represented:
        """C(u) from E(z_u) [n, d] and, one-shot, E(x_u) [n, d], nan where there is no query.

        Of several queries give their mean: its score is the mean of their scores.
        """
        if queries is None:
            queries = np.full_like(texts, np.nan)
        listed = self.shortlisted(texts, queries)
        return self.enriched(texts, queries, listed)

    def shortlisted(self, texts: Floats, queries: Floats) -> Shortlisted:
        """S_theta of each text and what the classifiers say."""
        similarities, rows = self.shortlist(texts, self.refinement.shortlist)  # [n, K] each
        classifiers = np.asarray(self.classifiers[rows], np.float32)  # [n, K, d]
        return Shortlisted(
            rows=rows,
            similarities=np.where(rows < 0, -np.inf, similarities),
            text_scores=np.matmul(classifiers, texts[..., None])[..., 0],
            query_scores=np.matmul(classifiers, queries[..., None])[..., 0],
        )

    def enriched(self, texts: Floats, queries: Floats, listed: Shortlisted) -> Represented:
        """What the survivors of the shortlist make of each text."""
        refinement = self.refinement
        votes = votes_for(listed, refinement)
        places = most_voted(votes=votes, similarities=listed.similarities, count=ASSOCIATED)
        present, taken = places >= 0, np.maximum(places, 0)
        rows = np.where(present, np.take_along_axis(listed.rows, taken, axis=1), -1)
        similarities = np.take_along_axis(listed.similarities, taken, axis=1)
        if refinement.pooling > 0.0:
            combined = self.combine(texts, *self._pooled(listed, votes))
        else:
            chosen = np.asarray(self.classifiers[rows], np.float32)  # [n, m, d]
            combined = self.combine(texts, chosen, present)
        return Represented(
            vectors=keys_from(texts, combined, queries, refinement),
            associated=rows,
            similarities=np.where(present, similarities, 0.0),
        )

    def _pooled(self, listed: Shortlisted, votes: Rows) -> tuple[Floats, Bools]:
        """The survivors' mean in the first of m places [n, m, d], and who has one [n, m]."""
        weights = pool_weights(votes, listed.similarities, temperature=self.refinement.pooling)
        chosen = np.zeros((len(votes), ASSOCIATED, self.classifiers.shape[1]), np.float32)
        for own in batches(len(votes), _BLOCK):
            beyond = self._beyond_texts(listed.rows[own])  # [., K, d]
            chosen[own, 0] = np.matmul(weights[own, None], beyond)[:, 0]
        present = np.zeros(chosen.shape[:2], bool)
        present[:, 0] = votes.any(axis=1)
        return chosen, present

    def _beyond_texts(self, rows: Rows) -> Floats:
        """w_l less the share `residual` of z_l, [n, K, d]."""
        beyond = np.asarray(self.classifiers[rows], np.float32)
        if self.refinement.residual > 0.0:
            beyond -= self.refinement.residual * np.asarray(self.keys_of(rows), np.float32)
        return beyond


def keys_from(texts: Floats, combined: Floats, queries: Floats, refinement: Refinement) -> Floats:
    """Keys [n, d] from E(z_u), C(u) and E(x_u), [n, d] each, nan where there is no query."""
    keys = moved(texts, combined, strength=refinement.strength)
    keys = leaning(keys, queries, weight=refinement.query_weight)
    asked = np.isfinite(queries[:, :1])  # [n, 1]
    lengths = np.where(asked, refinement.query_length, refinement.length)
    return (lengths * keys).astype(np.float32)


def moved(texts: Floats, combined: Floats, *, strength: float) -> Floats:
    """Unit vectors [n, d] between E(z_u) and C(u)."""
    return _unit(texts + strength * (combined - texts))


def leaning(keys: Floats, queries: Floats, *, weight: float) -> Floats:
    """Unit vectors [n, d] between keys and E(x_u); a key stays where its query is nan."""
    return _unit(keys + weight * np.nan_to_num(queries))


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled


def votes_for(listed: Shortlisted, refinement: Refinement) -> Rows:
    """Of those in the shortlist, [n, K]: 0 for who does not survive, 2 where the query agrees."""
    agrees = refined(listed.text_scores, threshold=refinement.text_threshold)
    agrees &= np.isfinite(listed.similarities)
    votes: Rows = agrees.astype(np.int64)
    votes += agrees & refined(listed.query_scores, threshold=refinement.query_threshold)
    return votes


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


def pool_weights(votes: Rows, similarities: Floats, *, temperature: float) -> Floats:
    """Votes times exp(<E(z_l), E(z_u)> / temperature), [n, K], of sum 1; 0 where none survives."""
    survives = votes > 0
    nearest = np.max(similarities, axis=1, keepdims=True, initial=-1.0, where=survives)
    logits = np.where(survives, (similarities - nearest) / temperature, -np.inf)
    weights = votes * np.exp(logits)
    return np.asarray(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12), np.float32)
