"""TF-IDF over words and characters."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="NO FEATURES: scikit-learn is not installed")

from training.peers.features import FeatureSettings, learn_features

TEXTS = ("red tent", "red lamp", "C compiler", "tents")


def test_rows_have_length_one_and_sorted_columns() -> None:
    found = learn_features(TEXTS, FeatureSettings()).of(TEXTS)

    assert found.dtype == np.float32
    assert np.allclose(np.sqrt(found.multiply(found).sum(axis=1)), 1.0)
    assert all(np.diff(row.indices).min() > 0 for row in found)


def test_forms_of_a_word_share_characters_and_words_of_one_letter_count() -> None:
    features = learn_features(TEXTS, FeatureSettings())
    tent, tents, c = (features.of([text]) for text in ("tent", "tents", "C"))

    assert 0.0 < (tent @ tents.T).toarray()[0, 0] < 1.0
    assert c.nnz
    assert (features.of(["c compiler"]) != features.of(["C compiler"])).nnz == 0


def test_the_vocabulary_is_that_of_training() -> None:
    features = learn_features(TEXTS, FeatureSettings())

    assert features.of(["quux"]).nnz == 0
    assert features.of(["red quux"]).shape == features.of(["red"]).shape


def test_settings_bound_the_vocabulary() -> None:
    def count(**changes: int) -> int:
        return learn_features(TEXTS, FeatureSettings(**changes)).of(TEXTS).shape[1]

    assert count(words=1) < count(words=2)
    assert count(characters=3) < count(characters=5)
    assert count(rows=2) < count(rows=1)
