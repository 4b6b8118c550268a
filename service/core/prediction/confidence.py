"""The confidence of a keyword: the calibrated probability that it is relevant.

Votes are shares, so their sum says little across queries: nonsense gets ten keywords, too. A small
network reads how the votes and the similarities of a query lie, and returns a probability. It is
fitted when the bundle is made, on rows that the encoder has not trained on (`export.bundle`).

Shapes: k ranked labels of one query, F features, H hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from service.core.bundle.manifest import ConfidenceFacts, Manifest
from service.core.errors import BundleUnsupported
from service.core.lexical.words import words_of
from service.core.memory.view import View
from service.core.prediction.ranking import Query, Ranking
from service.core.text_identity import identity
from service.core.types import Doubles, Reading, ScoreKind

FEATURES: tuple[str, ...] = (
    "score, share of best, log",
    "best score, log",
    "rank, log",
    "best similarity",
    "best similarity above the 10th",
    "10th similarity above the 50th",
    "known words, share",
    "words, log",
    "text is the query",
    "own row of the query votes for it",
)
_NEAREST = 10  # rows among which a query's own one is looked for
_LEAST_SCORE = 1e-6
_MOST_LOGIT = 30.0
FARTHEST = 4.0  # standard deviations of a feature; beyond them nothing was seen in fitting


def features_of(view: View, reading: Reading, ranking: Ranking) -> Doubles:
    """Return the values of `FEATURES` for each label of a ranking, [k, F].

    Words count as they were typed; texts of labels and rows are compared with what was searched.
    """
    scores = np.maximum(np.array(ranking.scores, np.float64), _LEAST_SCORE)
    features = np.empty((len(scores), len(FEATURES)))
    if not len(scores):
        return features
    best = max(ranking.best_score, _LEAST_SCORE)
    similarities, last = ranking.similarities, len(ranking.similarities) - 1
    first, tenth, fiftieth = (float(similarities[min(place, last)]) for place in (0, 9, 49))
    words = words_of(reading.query)
    known = sum(word in reading.known or view.lexicon.knows(word) for word in words)
    searched = identity(reading.text)
    features[:, 0] = np.log(scores / best)
    features[:, 1] = np.log(best)
    features[:, 2] = np.log1p(np.array(ranking.places))
    features[:, 3:6] = first, first - tenth, tenth - fiftieth
    features[:, 6:8] = known / max(1, len(words)), np.log1p(len(words))
    features[:, 8] = [
        any(identity(text) == searched for text in view.labels.texts_at(column))
        for column in ranking.columns
    ]
    features[:, 9] = _of_own_row(view, searched, ranking)
    return features


def _of_own_row(view: View, searched: str, ranking: Ranking) -> Doubles:
    """Return 1 for labels that the row of this query votes for, -1 for others, [k].

    All are 0 if no such row is among the nearest, or if it votes for none.
    """
    rows = ranking.rows[:_NEAREST]
    rows = rows[view.is_instance(rows)]
    own = [identity(view.text(row)) == searched for row in rows.tolist()]
    voted = set[int]()
    if any(own):
        columns, _, weights = view.weighted_votes(rows[own])
        voted.update(columns[weights > 0.0].tolist())
    if not voted:
        return np.zeros(len(ranking.columns))
    return np.array([1.0 if column in voted else -1.0 for column in ranking.columns])


class Confidence:
    """A fitted network of one hidden layer: p = sigmoid(v tanh(W z + a) + b)."""

    def __init__(self, facts: ConfidenceFacts) -> None:
        """Take the numbers of a manifest; raises `BundleUnsupported` if they do not fit."""
        hidden, output = np.array(facts.hidden, np.float64), np.array(facts.output, np.float64)
        shapes = (len(output) - 1, len(FEATURES) + 1)
        if tuple(facts.features) != FEATURES or hidden.shape != shapes:
            raise BundleUnsupported(
                "confidences of this bundle were fitted by another version: export it again"
            )
        self._means, self._scales = np.array(facts.means), np.array(facts.scales)
        self._hidden, self._offsets = np.ascontiguousarray(hidden[:, :-1].T), hidden[:, -1]
        self._output, self._offset = output[:-1], output[-1]

    def of(self, features: Doubles) -> Doubles:
        """Return the confidence of each label [k], which never rises with the rank."""
        z = _within(FARTHEST, (features - self._means) / self._scales)
        logits = np.tanh(z @ self._hidden + self._offsets) @ self._output + self._offset
        found = 1.0 / (1.0 + np.exp(-_within(_MOST_LOGIT, logits)))
        return np.minimum.accumulate(found)


def _within(most: float, numbers: Doubles) -> Doubles:
    """Return the nearest numbers from `-most` to `most`, in half the time of `np.clip`."""
    return np.minimum(np.maximum(numbers, -most), most)


@dataclass(frozen=True, slots=True)
class Confident:
    """Gives each label its confidence, if the bundle has those of this kind of score."""

    confidence: Mapping[ScoreKind, Confidence]

    def wants(self, count: int) -> int:
        """Return `count`."""
        return count

    def apply(self, ranking: Ranking, query: Query, count: int) -> Ranking:
        """Return the same labels with confidences."""
        confidence = self.confidence.get(ranking.score_kind)
        if confidence is None or not ranking.columns:
            return ranking
        by_score = ranking.by_score()
        found = confidence.of(features_of(query.view, query.reading, by_score)).tolist()
        if by_score is not ranking:
            of_place = dict(zip(by_score.places, found, strict=True))
            found = [of_place[place] for place in ranking.places]
        return ranking._replace(confidences=found)


@dataclass(frozen=True, slots=True)
class ConfidentEnough:
    """Leaves out labels of less than `least` confidence, unless the labels have none."""

    least: float

    def wants(self, count: int) -> int:
        """Return `count`: labels that are left out are not replaced."""
        return count

    def apply(self, ranking: Ranking, query: Query, count: int) -> Ranking:
        """Return the labels that are sure enough."""
        if not ranking.confidences:
            return ranking
        sure = enumerate(ranking.confidences)
        return ranking.only([place for place, of in sure if of is not None and of >= self.least])


def open_confidence(facts: Manifest) -> Mapping[ScoreKind, Confidence]:
    """Open the confidences of a bundle, by kind of score; raises as `Confidence`."""
    return {kind: Confidence(of_kind) for kind, of_kind in (facts.confidence or {}).items()}
