"""Soft labels: the teacher's scores and probabilities by hand, and which labels get any."""

from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.errors import InvalidConfig
from training.datasets.training_pairs import TrainingPairs
from training.systems.soft_labels.settings import SoftLabelSettings
from training.systems.soft_labels.teacher import (
    instance_scores,
    label_scores,
    soft_labels,
    teacher_probability,
)

KEYS = np.array([[1, 0], [0.6, 0.8], [0, 1], [-1, 0]], np.float32)
INSTANCES = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)
LABELS_OF = csr_matrix(np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]], np.float32))


def pairs(filtered: csr_matrix | None = None) -> TrainingPairs:
    nothing = csr_matrix(LABELS_OF.shape, dtype=bool)
    return TrainingPairs(labels_of=LABELS_OF, filtered=nothing if filtered is None else filtered)


def test_a_probability_is_one_half_at_the_center() -> None:
    scores = np.array([0.5, 0.7, 0.3, -np.inf, -1.0], np.float32)
    found = teacher_probability(scores, center=0.5, temperature=0.1)
    expected = [0.5, 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2)), 0.0, 0.0]
    assert found == pytest.approx(expected, abs=1e-6)
    assert teacher_probability(scores, center=0.5, temperature=1e-4)[-1] == 0.0


def test_scores_of_texts_and_of_the_rows_labels() -> None:
    rows, labels = np.array([0, 1]), np.arange(4)
    of_texts = instance_scores(rows, labels, instances=INSTANCES, keys=KEYS)
    np.testing.assert_allclose(of_texts, [[1, 0.6, 0, -1], [0.8, 0.96, 0.6, -0.8]], atol=1e-6)
    # Row 0 has labels 0 and 1, row 1 label 0 alone, which is no positive beside itself.
    of_labels = label_scores(rows, labels, positives=LABELS_OF, keys=KEYS)
    np.testing.assert_allclose(of_labels, [[0.6, 0.6, 0.8, -0.6], [-1, 0.6, 0, -1]], atol=1e-6)


def test_the_best_labels_with_few_rows_are_soft_labels() -> None:
    settings = SoftLabelSettings(top=2, most_rows=1, temperature=0.1)
    scores = partial(instance_scores, instances=INSTANCES, keys=KEYS)
    rows = np.array([0, 1])  # row 2 is held out: it has no soft labels
    found = soft_labels(scores, pairs(), rows, settings=settings, source="mine")

    # Label 0 has two rows, the others one or none. Of row 0, label 1 is a positive.
    assert sorted(found.labels[0].tolist()) == [2, 3]
    assert sorted(found.labels[1].tolist()) == [1, 2]
    assert found.labels[2].tolist() == [-1, -1]
    # The true pairs of rows 0 and 1 score 1, .6 and .8: their median is .8.
    of_row = dict(zip(found.labels[1].tolist(), found.probabilities[1].tolist(), strict=True))
    assert of_row == pytest.approx({1: 1 / (1 + np.exp(-1.6)), 2: 1 / (1 + np.exp(2.0))}, rel=1e-4)


def test_a_filtered_pair_is_no_soft_label() -> None:
    filtered = csr_matrix(np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]], bool))
    settings = SoftLabelSettings(top=3, most_rows=1)
    scores = partial(instance_scores, instances=INSTANCES, keys=KEYS)
    found = soft_labels(scores, pairs(filtered), np.arange(3), settings=settings, source="mine")
    assert sorted(found.labels[1].tolist()) == [-1, 2, 3]


def test_what_cannot_give_soft_labels_is_named() -> None:
    scores = partial(instance_scores, instances=INSTANCES, keys=KEYS)
    few = SoftLabelSettings(most_rows=0)
    everything = TrainingPairs(
        labels_of=csr_matrix(np.ones((3, 4), np.float32)),
        filtered=csr_matrix((3, 4), dtype=bool),
    )
    with pytest.raises(InvalidConfig, match="every label has more training rows, 3 at least"):
        soft_labels(scores, everything, np.arange(3), settings=few, source="mine")
    single = partial(label_scores, positives=LABELS_OF, keys=KEYS)
    with pytest.raises(InvalidConfig, match="needs rows with two labels"):
        soft_labels(single, pairs(), np.array([1]), settings=SoftLabelSettings(), source="mine")
