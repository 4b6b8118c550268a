"""Keys of novel labels, which no training query votes for (IRENE, Yadav et al., Algorithm 1).

A novel label u has a text z_u and possibly a query x_u that it was clicked for ("one-shot"). Seen
labels have a text and a learned classifier w_l. The combiner C joins the novel label's text with
the classifiers of S_u, at most three similar seen labels: C(u) = C(E(z_u), {w_l : l in S_u}).

Our extensions; the numbers in a bundle's `Refinement` switch them on:

- Pooling. All survivors of the refinement are combined as one vector: the mean of their
  classifiers, weighted by similarity of texts (Nadaraya and Watson's estimate of w_u).
- Residual. Their offsets w_l - z_l (classifier minus text) are pooled instead.
- Length. Classifiers lie closer to queries than texts do, so an enriched novel label would outrank
  seen labels, whose keys are their texts. A key shorter than 1 lowers all scores of a novel label
  by one factor (calibrated stacking, Chao et al. 2016, as a factor).

Shapes: n novel labels, S seen labels with a classifier, K places of a shortlist, m associated
labels, d dimensions. An empty place has row -1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.manifest import Refinement
from service.core.encoding.onnx_session import open_session
from service.core.index.protocol import batches
from service.core.types import Bools, Floats, Rows

ASSOCIATED = 3  # at most this many labels; more did not help (section 4.1 of the paper)
_BLOCK = 1_024  # labels whose shortlisted classifiers are in memory at once

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
    """Keys [n, d] of novel labels, the seen labels that enriched them, and similarities [n, m].

    `associated` are rows of W [n, m]. With pooling, only the first m of all survivors are listed.
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
        """Return keys from E(z_u) [n, d] and, if one-shot, E(x_u) [n, d]; nan stands for no query.

        For several queries, pass the mean of their vectors. Its score is the mean of their scores.
        """
        if queries is None:
            queries = np.full_like(texts, np.nan)
        return self.enriched(texts, queries, self.shortlisted(texts, queries))

    def shortlisted(self, texts: Floats, queries: Floats) -> Shortlisted:
        """Return the shortlist S_theta of each text, with the scores of its classifiers."""
        similarities, rows = self.shortlist(texts, self.refinement.shortlist)  # [n, K] each
        classifiers = np.asarray(self.classifiers[rows], np.float32)  # [n, K, d]
        return Shortlisted(
            rows=rows,
            similarities=np.where(rows < 0, -np.inf, similarities),
            text_scores=np.matmul(classifiers, texts[..., None])[..., 0],
            query_scores=np.matmul(classifiers, queries[..., None])[..., 0],
        )

    def enriched(self, texts: Floats, queries: Floats, listed: Shortlisted) -> Represented:
        """Return the keys from texts, queries and the labels of the shortlist that survive."""
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
        """Return the survivors' mean as the first of m classifiers [n, m, d], and presence [n, m].

        With residuals, it is the mean of w_l - residual * z_l.
        """
        residual = self.refinement.residual
        weights = pool_weights(votes, listed.similarities, temperature=self.refinement.pooling)
        pooled = np.zeros((len(votes), ASSOCIATED, self.classifiers.shape[1]), np.float32)
        for block in batches(len(votes), _BLOCK):
            rows = listed.rows[block]
            offsets = np.asarray(self.classifiers[rows], np.float32)  # [., K, d]
            if residual > 0.0:
                offsets -= residual * np.asarray(self.keys_of(rows), np.float32)
            pooled[block, 0] = np.matmul(weights[block, None], offsets)[:, 0]
        present = np.zeros(pooled.shape[:2], bool)
        present[:, 0] = votes.any(axis=1)
        return pooled, present


def keys_from(texts: Floats, combined: Floats, queries: Floats, refinement: Refinement) -> Floats:
    """Return keys [n, d] from E(z_u), C(u) and E(x_u), [n, d] each; nan stands for no query."""
    keys = interpolated(texts, combined, strength=refinement.strength)
    keys = query_added(keys, queries, weight=refinement.query_weight)
    has_query = np.isfinite(queries[:, :1])  # [n, 1]
    lengths = np.where(has_query, refinement.query_length, refinement.length)
    return (lengths * keys).astype(np.float32)


def interpolated(texts: Floats, combined: Floats, *, strength: float) -> Floats:
    """Return unit vectors [n, d] between E(z_u), at strength 0, and C(u), at strength 1."""
    return _unit(texts + strength * (combined - texts))


def query_added(keys: Floats, queries: Floats, *, weight: float) -> Floats:
    """Return unit vectors keys + weight * E(x_u) [n, d]. A nan query leaves its key unchanged."""
    return _unit(keys + weight * np.nan_to_num(queries))


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled


def votes_for(listed: Shortlisted, refinement: Refinement) -> Rows:
    """Return votes [n, K] for the shortlisted labels.

    0: the classifier's score of the text is below tau0, so the label does not survive. 1: it
    survives. 2: the score of the query is also at least tau1.
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
    """Return the places [n, count] with the most votes; equal votes are ordered by similarity.

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


class OnnxCombiner:
    """The graph `combiner.onnx`, run on one thread per call."""

    def __init__(self, path: Path) -> None:
        """Load the graph; raises `BundleAltered` if the file is not an ONNX graph."""
        self._session = open_session(path)

    def __call__(self, texts: Floats, classifiers: Floats, present: Bools) -> Floats:
        """Return unit vectors C(u) [n, d].

        Takes text vectors [n, d], classifiers [n, m, d], and which of them are present [n, m].
        """
        inputs = {
            "texts": np.ascontiguousarray(texts, np.float32),
            "classifiers": np.ascontiguousarray(classifiers, np.float32),
            "present": np.ascontiguousarray(present, bool),
        }
        vectors: Floats = self._session.run(None, inputs)[0]
        return vectors
