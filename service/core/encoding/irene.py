"""Keys of novel labels, which no training query has voted for (IRENE, Yadav et al., Algorithm 1).

A novel label u has a text z_u and possibly a query x_u that it was clicked for ("one-shot"). Seen
labels have a text and a learned classifier w_l. The classifiers of at most three similar seen
labels S_u and the novel label's text are combined: C(u) = C(E(z_u), {w_l : l in S_u}).

Our extensions, which a bundle switches on by the numbers of its `Refinement`:

- Pooling. All survivors of the refinement are combined as one vector: the mean of their
  classifiers, weighted by similarity of texts (Nadaraya and Watson's estimate of w_u).
- Residual. Their offsets w_l - z_l (classifier minus text) are pooled instead, so that u is
  shifted by its neighbours' offset.
- Length. Classifiers lie closer to queries than texts do, so an enriched novel label would outrank
  seen labels, whose keys are their texts. A key shorter than 1 lowers all scores of a novel label
  by the same factor (calibrated stacking, Chao et al. 2016, as a factor).

Shapes: n novel labels, S seen labels with a classifier, K places of a shortlist, m associated
labels, d dimensions. An empty place has row -1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.manifest import Refinement
from service.core.index.protocol import batches
from service.core.types import Bools, Floats, Rows

ASSOCIATED = 3  # labels at most; more did not help (section 4.1 of the paper)
_BLOCK = 1_024  # novel labels whose shortlisted classifiers are in memory at once

Shortlist = Callable[[Floats, int], tuple[Floats, Rows]]
KeysOf = Callable[[Rows], NDArray[np.floating]]
Combine = Callable[[Floats, Floats, Bools], Floats]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shortlisted:
    """The K seen labels most similar to each novel label, [n, K], descending by similarity.

    `rows` are rows of W, `similarities` are <E(z_l), E(z_u)>, `text_scores` are <w_l, E(z_u)>, and
    `query_scores` are <w_l, E(x_u)>, nan for a label without a query.
    """

    rows: Rows
    similarities: Floats
    text_scores: Floats
    query_scores: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Represented:
    """Keys [n, d] of novel labels, and the labels that enriched them, with similarities [n, m].

    `associated` are rows of W [n, m]. With pooling they are the first m of all survivors.
    """

    vectors: Floats
    associated: Rows
    similarities: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class NovelLabels:
    """Computes the keys of novel labels.

    `shortlist(texts, K)` returns similarities <E(z_l), E(z_u)> [n, K], descending, and rows of
    `classifiers`. `keys_of(rows [n, K])` returns the text vectors z_l [n, K, d] of these rows.
    `combine(texts [n, d], classifiers [n, m, d], present [n, m])` is the combiner C.
    """

    classifiers: NDArray[np.floating]  # W, [S, d] unit vectors
    shortlist: Shortlist
    keys_of: KeysOf
    combine: Combine
    refinement: Refinement

    def represent(self, texts: Floats, queries: Floats | None = None) -> Represented:
        """Return keys from E(z_u) [n, d] and, one-shot, E(x_u) [n, d]; nan for no query.

        For several queries, pass the mean of their vectors: its score is the mean of their scores.
        """
        if queries is None:
            queries = np.full_like(texts, np.nan)
        listed = self.shortlisted(texts, queries)
        return self.enriched(texts, queries, listed)

    def shortlisted(self, texts: Floats, queries: Floats) -> Shortlisted:
        """Return the shortlist S_theta of each text, and its classifiers' scores."""
        similarities, rows = self.shortlist(texts, self.refinement.shortlist)  # [n, K] each
        classifiers = np.asarray(self.classifiers[rows], np.float32)  # [n, K, d]
        return Shortlisted(
            rows=rows,
            similarities=np.where(rows < 0, -np.inf, similarities),
            text_scores=np.matmul(classifiers, texts[..., None])[..., 0],
            query_scores=np.matmul(classifiers, queries[..., None])[..., 0],
        )

    def enriched(self, texts: Floats, queries: Floats, listed: Shortlisted) -> Represented:
        """Return the keys that texts, queries and the survivors of the shortlist give."""
        refinement = self.refinement
        votes = votes_for(listed, refinement)
        places = most_voted(votes=votes, similarities=listed.similarities, count=ASSOCIATED)
        present = places >= 0  # [n, m]
        filled = np.maximum(places, 0)
        rows = np.where(present, np.take_along_axis(listed.rows, filled, axis=1), -1)
        similarities = np.take_along_axis(listed.similarities, filled, axis=1)
        if refinement.pooling > 0.0:
            combined = self.combine(texts, *self._pooled(listed, votes))
        else:
            classifiers = np.asarray(self.classifiers[rows], np.float32)  # [n, m, d]
            combined = self.combine(texts, classifiers, present)
        return Represented(
            vectors=keys_from(texts, combined, queries, refinement),
            associated=rows,
            similarities=np.where(present, similarities, 0.0),
        )

    def _pooled(self, listed: Shortlisted, votes: Rows) -> tuple[Floats, Bools]:
        """Return the survivors' weighted mean as first of m classifiers, and which are present.

        Shapes [n, m, d] and [n, m].
        """
        weights = pool_weights(votes, listed.similarities, temperature=self.refinement.pooling)
        pooled = np.zeros((len(votes), ASSOCIATED, self.classifiers.shape[1]), np.float32)
        for block in batches(len(votes), _BLOCK):
            offsets = self._offsets(listed.rows[block])  # [., K, d]
            pooled[block, 0] = np.matmul(weights[block, None], offsets)[:, 0]
        present = np.zeros(pooled.shape[:2], bool)
        present[:, 0] = votes.any(axis=1)
        return pooled, present

    def _offsets(self, rows: Rows) -> Floats:
        """Return w_l - residual * z_l, [n, K, d]."""
        offsets = np.asarray(self.classifiers[rows], np.float32)
        if self.refinement.residual > 0.0:
            offsets -= self.refinement.residual * np.asarray(self.keys_of(rows), np.float32)
        return offsets


def keys_from(texts: Floats, combined: Floats, queries: Floats, refinement: Refinement) -> Floats:
    """Return keys [n, d] from E(z_u), C(u) and E(x_u), [n, d] each; nan for no query."""
    keys = interpolated(texts, combined, strength=refinement.strength)
    keys = query_added(keys, queries, weight=refinement.query_weight)
    has_query = np.isfinite(queries[:, :1])  # [n, 1]
    lengths = np.where(has_query, refinement.query_length, refinement.length)
    return (lengths * keys).astype(np.float32)


def interpolated(texts: Floats, combined: Floats, *, strength: float) -> Floats:
    """Return unit vectors [n, d] between E(z_u), at strength 0, and C(u), at strength 1."""
    return _unit(texts + strength * (combined - texts))


def query_added(keys: Floats, queries: Floats, *, weight: float) -> Floats:
    """Return keys + weight * E(x_u) as unit vectors [n, d]; nan queries leave keys unchanged."""
    return _unit(keys + weight * np.nan_to_num(queries))


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled


def votes_for(listed: Shortlisted, refinement: Refinement) -> Rows:
    """Return votes [n, K] for the shortlisted labels.

    0: the label does not survive, because its classifier's score of the text is below tau0. 1: it
    survives. 2: its classifier's score of the query is at least tau1, too.
    """
    survives = reaches(listed.text_scores, threshold=refinement.text_threshold)
    survives &= np.isfinite(listed.similarities)
    votes: Rows = survives.astype(np.int64)
    votes += survives & reaches(listed.query_scores, threshold=refinement.query_threshold)
    return votes


def reaches(scores: Floats, *, threshold: float) -> Bools:
    """Return which scores are at least the threshold (S_w in the paper); nan never is."""
    with np.errstate(invalid="ignore"):
        kept: Bools = scores >= threshold
    return kept


def most_voted(*, votes: Rows, similarities: Floats, count: int) -> Rows:
    """Return the places [n, count] with most votes; the more similar first at equal votes.

    Places without a vote are -1.
    """
    order = np.lexsort((-similarities, -votes), axis=1)[:, :count]  # [n, count]
    has_vote = np.take_along_axis(votes, order, axis=1) > 0
    places: Rows = np.where(has_vote, order, -1)
    missing = count - places.shape[1]
    return np.pad(places, ((0, 0), (0, missing)), constant_values=-1) if missing > 0 else places


def pool_weights(votes: Rows, similarities: Floats, *, temperature: float) -> Floats:
    """Return weights [n, K]: votes * exp(<E(z_l), E(z_u)> / temperature), scaled to sum 1.

    Labels that do not survive weigh 0; if none survives, all weights are 0.
    """
    survives = votes > 0
    nearest = np.max(similarities, axis=1, keepdims=True, initial=-1.0, where=survives)
    logits = np.where(survives, (similarities - nearest) / temperature, -np.inf)
    weights = votes * np.exp(logits)
    return np.asarray(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12), np.float32)
