"""Overlaps of texts, computed by hand."""

import numpy as np
import pytest

from training.reranking.candidates import Candidates
from training.reranking.text_features import common_beginning, first_word, text_features

QUERIES = ["ab-data: the game's data"]
LABELS = ["ab: the game", "xy: the sound", ""]


@pytest.fixture(scope="module")
def features() -> dict[str, np.ndarray]:
    candidates = Candidates(
        queries=np.zeros(3, np.int64), labels=np.arange(3), scores=np.ones(3), count=1
    )
    return text_features(QUERIES, LABELS, candidates)


def test_each_feature_has_a_value_for_each_pair(features: dict[str, np.ndarray]) -> None:
    assert all(values.shape == (3,) and np.isfinite(values).all() for values in features.values())


def test_trigrams_of_the_label_in_the_query(features: dict[str, np.ndarray]) -> None:
    def grams(text: str) -> set[str]:
        return {f" {w} "[i : i + 3] for w in text.lower().split() for i in range(len(w))}

    common = len(grams(QUERIES[0]) & grams(LABELS[0]))
    ours, theirs = len(grams(QUERIES[0])), len(grams(LABELS[0]))
    assert features["trigrams of the label in the query"][0] == pytest.approx(common / theirs)
    assert features["trigrams, Jaccard"][0] == pytest.approx(common / (ours + theirs - common))
    assert features["trigrams of the label"].tolist()[2] == 0.0


def test_rare_words_weigh_more(features: dict[str, np.ndarray]) -> None:
    the, ab, game = np.log(4 / 3), np.log(4 / 2), np.log(4 / 2)
    assert features["words, inverse frequency"][:2] == pytest.approx([the + ab + game, the])
    assert features["words of the label in the query"][0] == pytest.approx(1.0)


def test_first_words(features: dict[str, np.ndarray]) -> None:
    assert features["common beginning"].tolist() == [2.0, 0.0, 0.0]
    assert features["common beginning, share of the label's first word"][0] == 1.0
    assert features["common beginning, share of the query's first word"][0] == pytest.approx(2 / 7)


def test_texts_without_words_overlap_in_nothing() -> None:
    candidates = Candidates(
        queries=np.zeros(1, np.int64), labels=np.zeros(1, np.int64), scores=np.ones(1), count=1
    )
    features = text_features(["!"], ["?"], candidates)
    assert features["words, inverse frequency"].tolist() == [0.0]
    assert all(np.isfinite(values).all() for values in features.values())


def test_words_at_the_beginning() -> None:
    assert [first_word(text) for text in ("Ab: c", "", "  (x) y")] == ["ab", "", "x"]
    assert common_beginning("abc", "abd") == 2 and common_beginning("ab", "abc") == 2
    assert common_beginning("", "a") == 0
