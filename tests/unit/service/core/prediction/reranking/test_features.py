"""Features of a candidate equal hand-computed ones, for labels with orthogonal keys."""

from typing import Any

import numpy as np
import pytest

from service.core.prediction.reranking.features import (
    FEATURES,
    SHARP,
    SMOOTH,
    Candidates,
    features_of,
)
from service.core.prediction.reranking.text_overlap import TextComparison, WordRarity
from service.core.types import Halves, Rows

TEXTS = ["red tent", "blue tent", "lamp"]
VECTOR = np.array([0.6, 0.8], np.float32)


class Labels:
    """A memory: rows 0 to 2 are instances, 3 to 5 labels. Most rows vote for the first label."""

    votes = ([0, 1], [0], [0, 2], [0], [1], [2])

    def is_instance(self, rows: Rows) -> np.ndarray:
        return rows < 3

    def weighted_votes(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        voted = [self.votes[row] for row in rows.tolist()]
        columns = np.array([column for one in voted for column in one], np.int32)
        counts = np.array([len(one) for one in voted], np.int64)
        return columns, counts, np.ones(len(columns), np.float32)

    def keys_of(self, columns: Rows) -> Halves:
        return np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.float16)[columns]

    def texts_of(self, columns: Rows) -> list[str]:
        return [TEXTS[column] for column in columns.tolist()]

    def frequencies_of(self, columns: Rows) -> Rows:
        return np.array([3, 1, 1])[columns]


def by_name(columns: list[int], scores: list[float], **searched: Any) -> dict[str, list[float]]:
    """Return the features of candidates by the features' names."""
    candidates = Candidates(
        vector=VECTOR, columns=np.array(columns), scores=np.array(scores), **searched
    )
    found = features_of(
        candidates, Labels(), rarity=WordRarity.among(TEXTS), compare=TextComparison()
    )
    assert found.shape == (len(columns), len(FEATURES)) and found.dtype == np.float32
    assert np.isfinite(found).all()
    return dict(zip(FEATURES, found.T.tolist(), strict=True))


@pytest.fixture(scope="module")
def features() -> dict[str, list[float]]:
    similarities = np.array([0.8, 0.7, 0.65, 0.6], np.float32)
    rows = np.array([4, 0, 2, 3])
    # The third label is no candidate.
    return by_name([1, 0], [0.5, 0.2], query="a red tent", rows=rows, similarities=similarities)


def shares(first: float, second: float, tau: float) -> list[float]:
    """Return the softmax over two similarities."""
    weights = np.exp(np.array([first, second]) / tau)
    return (weights / weights.sum()).tolist()


# Candidate 0 is label 1, candidate 1 is label 0. Rows 0 and 2 are instances; both vote for label 0.
SHARP_SHARE, SMOOTH_SHARE = shares(0.7, 0.65, SHARP)[0], shares(0.7, 0.65, SMOOTH)[0]
OF_LABELS = shares(0.8, 0.6, SMOOTH)  # shares of the rows 4 and 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("score", [0.5, 0.2]),
        ("score, share of best", [1.0, 0.4]),
        ("rank", [0.0, 1.0]),
        ("similarity", [0.8, 0.6]),
        ("similarity below best", [0.0, -0.2]),
        ("label frequency", [np.log(2), np.log(4)]),
        ("sharp instance votes", [SHARP_SHARE, 1.0]),
        ("sharp instance votes, share of best", [SHARP_SHARE, 1.0]),
        ("smooth instance votes", [SMOOTH_SHARE, 1.0]),
        ("smooth instance votes, share of best", [SMOOTH_SHARE, 1.0]),
        ("label weight", OF_LABELS),
        ("label weight, share of best", [1.0, OF_LABELS[1] / OF_LABELS[0]]),
        # "a red tent" has 1 + 3 + 4 trigrams, "blue tent" 4 + 4, "red tent" 3 + 4.
        ("trigrams, Jaccard", [4 / 12, 7 / 8]),
        ("trigrams of the label in the query", [4 / 8, 1.0]),
        ("trigrams of the query in the label", [4 / 8, 7 / 8]),
        ("common beginning", [0.0, 0.0]),
    ],
)
def test_a_feature_by_hand(
    features: dict[str, list[float]], name: str, expected: list[float]
) -> None:
    assert features[name] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert features["words of the label in the query"][1] == pytest.approx(1.0)


def test_a_query_that_retrieved_labels_alone() -> None:
    similarities = np.array([0.1], np.float32)
    of = by_name([2], [0.0], query="", rows=np.array([5]), similarities=similarities)
    assert of["sharp instance votes"] == of["sharp instance votes, share of best"] == [0.0]
    assert of["label weight"] == [1.0]
