"""What trees read of a candidate, computed by hand on a bundle of orthogonal keys."""

import numpy as np
import pytest

from service.core.prediction.reranking.features import (
    FEATURES,
    SHARP,
    SMOOTH,
    Candidates,
    features_of,
)
from service.core.prediction.reranking.text_overlap import WordRarity, compare_in_python
from service.core.types import Halves, Rows

TEXTS = ["red tent", "blue tent", "lamp"]
VECTOR = np.array([0.6, 0.8], np.float32)


class Labels:
    """Rows 0 to 2 are instances, 3 to 5 the labels; the first label has most rows."""

    votes = ([0, 1], [0], [0, 2], [0], [1], [2])

    def is_instance(self, rows: Rows) -> np.ndarray:
        return rows < 3

    def weighted_votes(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, None]:
        voted = [self.votes[row] for row in rows.tolist()]
        columns = np.array([column for one in voted for column in one], np.int32)
        return columns, np.array([len(one) for one in voted], np.int64), None

    def keys_of(self, columns: Rows) -> Halves:
        return np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.float16)[columns]

    def texts_of(self, columns: Rows) -> list[str]:
        return [TEXTS[column] for column in columns.tolist()]

    def frequencies_of(self, columns: Rows) -> Rows:
        return np.array([3, 1, 1])[columns]


@pytest.fixture(scope="module")
def features() -> dict[str, list[float]]:
    candidates = Candidates(
        query="a red tent",
        vector=VECTOR,
        columns=np.array([1, 0]),  # the third label is no candidate
        scores=np.array([0.5, 0.2]),
        rows=np.array([4, 0, 2, 3]),
        similarities=np.array([0.8, 0.7, 0.65, 0.6], np.float32),
    )
    found = features_of(
        candidates, Labels(), rarity=WordRarity.among(TEXTS), compare=compare_in_python
    )
    assert found.shape == (2, len(FEATURES)) and found.dtype == np.float32
    return dict(zip(FEATURES, found.T.tolist(), strict=True))


def test_scores_and_places(features: dict[str, list[float]]) -> None:
    assert features["score"] == pytest.approx([0.5, 0.2])
    assert features["score, share of best"] == pytest.approx([1.0, 0.4])
    assert features["rank"] == [0.0, 1.0]


def test_similarities_of_keys(features: dict[str, list[float]]) -> None:
    assert features["similarity"] == pytest.approx([0.8, 0.6], abs=1e-6)
    assert features["similarity below best"] == pytest.approx([0.0, -0.2], abs=1e-6)
    assert features["label frequency"] == pytest.approx([np.log(2), np.log(4)])


@pytest.mark.parametrize(("name", "tau"), [("sharp", SHARP), ("smooth", SMOOTH)])
def test_instances_vote_by_themselves(
    features: dict[str, list[float]], name: str, tau: float
) -> None:
    first, second = np.exp(0.7 / tau), np.exp(0.65 / tau)  # rows 0 and 2
    share = first / (first + second)
    assert features[f"{name} instance votes"] == pytest.approx([share, 1.0], rel=1e-5)
    assert features[f"{name} instance votes, share of best"] == pytest.approx(
        [share, 1.0], rel=1e-5
    )


def test_labels_vote_by_themselves(features: dict[str, list[float]]) -> None:
    first, second = np.exp(0.8 / SMOOTH), np.exp(0.6 / SMOOTH)  # rows 4 and 3
    expected = [first / (first + second), second / (first + second)]
    assert features["label weight"] == pytest.approx(expected, rel=1e-5)
    assert features["label weight, share of best"] == pytest.approx(
        [1.0, expected[1] / expected[0]], rel=1e-5
    )


def test_texts_are_compared(features: dict[str, list[float]]) -> None:
    # "a red tent" has 1 + 3 + 4 trigrams, "blue tent" 4 + 4, "red tent" 3 + 4.
    assert features["trigrams, Jaccard"] == pytest.approx([4 / 12, 7 / 8])
    assert features["trigrams of the label in the query"] == pytest.approx([4 / 8, 1.0])
    assert features["trigrams of the query in the label"] == pytest.approx([4 / 8, 7 / 8])
    assert features["words of the label in the query"][1] == pytest.approx(1.0)
    assert features["common beginning"] == [0.0, 0.0]
    assert all(np.isfinite(values).all() for values in features.values())


def test_a_query_that_retrieved_labels_alone() -> None:
    candidates = Candidates(
        query="",
        vector=VECTOR,
        columns=np.array([2]),
        scores=np.array([0.0]),
        rows=np.array([5]),
        similarities=np.array([0.1], np.float32),
    )
    found = features_of(
        candidates, Labels(), rarity=WordRarity.among(TEXTS), compare=compare_in_python
    )
    of = dict(zip(FEATURES, found[0].tolist(), strict=True))
    assert np.isfinite(found).all()
    assert of["sharp instance votes"] == of["sharp instance votes, share of best"] == 0.0
    assert of["label weight"] == 1.0
