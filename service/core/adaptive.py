"""A lambda of each query's own, from what its retrieved keys look like.

RAE-XMC has one lambda for all queries and leaves a learned one open (section 6). Here
lambda(q) = sigmoid(w . f(q) + c) over features f of the b retrieved keys; `training.adaptive`
learns w and c on held-out rows. They need no search and no encoding of their own.

Shapes: b retrieved keys of one query, in descending similarity; n votes, the labels of all of
them one after the other; F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.core.errors import BundleUnsupported
from service.core.prediction.scoring import predictive_scores
from service.core.types import Bools, Doubles, Floats, Indices

# The difference of the two similarities is not listed: a linear model makes it of both.
FEATURES = (
    "best_instance",  # similarity of the nearest instance key
    "best_label",  # similarity of the nearest label key
    "entropy",  # of the retriever's softmax, over that of b equal weights
    "instance_mass",  # the softmax's weight on instance keys
    "consensus",  # the share of the instances' weight whose labels include their favourite
    "agreement",  # the share of it whose labels include the nearest label key's
)
MOST = 10.0  # of |w . f + c|: neither block ever loses its vote altogether


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptiveMemorization:
    """w and c of lambda(q) = sigmoid(w . f(q) + c)."""

    weights: Doubles  # [F], in order of `FEATURES`
    bias: float

    @classmethod
    def named(cls, weights: Mapping[str, float], *, bias: float) -> AdaptiveMemorization:
        """Weights by the features' names; a feature that is not named has none.

        Raises `BundleUnsupported` for a feature that this build cannot compute.
        """
        unknown = sorted(set(weights) - set(FEATURES))
        if unknown:
            raise BundleUnsupported(
                f"adaptive memorization: feature {unknown[0]!r} is unknown to this version;"
                f" known: {', '.join(FEATURES)}"
            )
        return cls(weights=np.array([weights.get(name, 0.0) for name in FEATURES]), bias=bias)

    def of(self, features: Doubles) -> float:
        """lambda(q) from features [F]."""
        return adaptive_memorization(features=features, weights=self.weights, bias=self.bias)


def adaptive_memorization(*, features: Doubles, weights: Doubles, bias: float) -> float:
    """lambda(q) = sigmoid(w . f(q) + c), inside (0, 1)."""
    logit = min(max(float(weights @ features) + bias, -MOST), MOST)
    return float(1.0 / (1.0 + np.exp(-logit)))


def retrieval_features(
    *,
    similarities: Floats,
    weights: Doubles,
    is_instance: Bools,
    labels: Indices,
    votes_per_key: NDArray[np.int64],
) -> Doubles:
    """f(q) [F], of one query's keys [b], their softmax weights (Eq. 5) and their votes [n].

    A block that is not among the retrieved has no nearest key; its key would have been nearer than
    the last one otherwise, so that one's similarity, the most it can be, stands for it. What the
    instances say is 0 where no instance was retrieved. Without any key all features are 0.
    """
    if len(similarities) == 0:
        return np.zeros(len(FEATURES))
    mass = float(weights[is_instance].sum())
    favourite, nearest = instance_shares(
        weights=np.where(is_instance, weights, 0.0),
        is_instance=is_instance,
        labels=labels,
        votes_per_key=votes_per_key,
    )
    return np.array(
        [
            best_similarity(similarities=similarities, among=is_instance),
            best_similarity(similarities=similarities, among=~is_instance),
            normalised_entropy(weights=weights),
            mass,
            favourite / mass if mass > 0.0 else 0.0,
            nearest / mass if mass > 0.0 else 0.0,
        ]
    )


def best_similarity(*, similarities: Floats, among: Bools) -> float:
    """The highest similarity of the marked keys [b]; of none, the lowest of all."""
    return float(similarities[among].max() if among.any() else similarities.min())


def normalised_entropy(*, weights: Doubles) -> float:
    """-sum(w ln w) / ln b of weights [b] that sum to 1: 0 for one certain key, 1 for b equal ones.

    A single key is certain.
    """
    if len(weights) < 2:
        return 0.0
    positive = weights[weights > 0.0]
    return float(-(positive * np.log(positive)).sum() / np.log(len(weights)))


def instance_shares(
    *,
    weights: Doubles,
    is_instance: Bools,
    labels: Indices,
    votes_per_key: NDArray[np.int64],
) -> tuple[float, float]:
    """What the instances give their favourite label, and what they give the nearest label key's.

    `weights` [b] are 0 for label keys.
    """
    if not len(labels):
        return 0.0, 0.0
    distinct, scores = predictive_scores(
        weights=weights, labels=labels, votes_per_key=votes_per_key
    )
    of_label_keys = labels[np.repeat(~is_instance, votes_per_key)]  # in descending similarity
    if not len(of_label_keys):
        return float(scores.max()), 0.0
    nearest = np.searchsorted(distinct, of_label_keys[0])
    return float(scores.max()), float(scores[nearest])
