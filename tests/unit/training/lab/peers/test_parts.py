"""Code that peers share: training rows, TF-IDF features, and answers as arrays of labels."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("sklearn", reason="NO FEATURES: scikit-learn is not installed")

from service.core.errors import InvalidInput
from tests.support.tiny.training import tiny_dataset
from training.datasets.dataset import Dataset, Split, Texts
from training.lab.peers import peer_training_data
from training.lab.peers.features import FeatureSettings, learn_features
from training.lab.peers.ranking import Ranking, padded, ranked_scores

LABELS = Texts(uids=("a", "b", "c"), texts=("A", "B", "C"))


def split(labels_of: list[list[float]], filtered: list[list[int]]) -> Split:
    names = tuple(f"row {row}" for row in range(len(labels_of)))
    return Split(
        instances=Texts(uids=names, texts=names),
        labels_of=csr_matrix(labels_of, dtype="f4"),
        filtered=csr_matrix(filtered, dtype=bool),
    )


def test_filtered_pairs_rows_without_labels_and_the_test_split_do_not_train() -> None:
    train = split(
        [[2.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [[0, 1, 1], [1, 0, 0], [0, 0, 0]]
    )
    test = split([[0.0, 1.0, 0.0]] * 5, [[0, 0, 0]] * 5)  # peers do not see it
    found = peer_training_data(Dataset(name="x", train=train, test=test, labels=LABELS))
    assert found.texts == ("row 0", "row 2")
    assert found.labels_of.toarray().tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert found.labels_of.dtype == "f4"
    assert found.label_texts == ("A", "B", "C")


def test_nothing_to_learn_from_is_an_error() -> None:
    train = split([[1.0, 0.0, 0.0]], [[1, 0, 0]])
    with pytest.raises(InvalidInput, match="no training row has a label that counts"):
        peer_training_data(Dataset(name="x", train=train, test=train, labels=LABELS))


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


def test_short_rows_end_with_nothing_and_long_ones_are_cut() -> None:
    assert padded([[3, 1], [], [2, 0, 1, 4]], top_k=3).tolist() == [
        [3, 1, -1],
        [-1, -1, -1],
        [2, 0, 1],
    ]


def test_scores_are_ranked_with_ties_by_column() -> None:
    scores = csr_matrix(np.array([[0.1, 0.9, 0.0, 0.9], [0.0, 0.0, -0.5, 0.0]]))

    assert ranked_scores(scores, top_k=3).tolist() == [[1, 3, 0], [2, -1, -1]]


def test_test_rows_are_asked_for_a_hundred_labels_and_as_many_as_are_filtered() -> None:
    dataset = tiny_dataset()
    filtered = dataset.test.filtered.tolil()
    filtered[0, [0, 1]] = True
    dataset = replace(dataset, test=replace(dataset.test, filtered=filtered.tocsr()))
    asked = []

    def rank(texts, top_k):
        asked.append((tuple(texts), top_k))
        return padded([[row % 16] for row in range(len(texts))], top_k=top_k)

    ranking = Ranking(method="by number", rank=rank, libraries={})
    [(result, rows)] = ranking.measure(dataset)

    assert asked == [(dataset.test.instances.texts, 102)]
    assert (result.method, result.chosen, rows.shape) == ("by number", True, (16, 3))
