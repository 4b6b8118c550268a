"""The two equations for weights, checked with values computed by hand."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from tests.support.tiny.training import tiny_dataset
from training.datasets.pair_weights import relevance, vote_weights, with_relevance


def test_a_data_set_on_another_scale() -> None:
    dataset = tiny_dataset()
    dataset.train.labels_of.data *= 3.0
    assert with_relevance(dataset, None) is dataset
    assert with_relevance(dataset, "given") is dataset
    scaled = with_relevance(dataset, "log")
    assert scaled.train.labels_of.data == pytest.approx(math.log(4.0))
    assert set(dataset.train.labels_of.data.tolist()) == {3.0}
    assert scaled.test is dataset.test


def test_no_weight_becomes_zero_or_infinite() -> None:
    weights = csr_matrix((np.array([1e-300, 1e300]), ([0, 0], [0, 1])), shape=(1, 2))
    values = relevance(weights, scale="given")
    assert values.nnz == 2
    assert (values.data > 0).all() and np.isfinite(values.data).all()


def test_votes_weigh_one_in_the_mean_of_each_row() -> None:
    labels_of = csr_matrix([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 7.0, 0.0], [1.0, 1.0, 4.0]])
    weights = vote_weights(labels_of)
    assert weights is not None
    assert weights.dtype == np.float32
    assert weights.tolist() == [1.5, 0.5, 1.0, 0.5, 0.5, 2.0]


@pytest.mark.parametrize("rows", [[[1.0, 1.0], [0.0, 1.0]], [[0.3, 0.3], [0.0, 5.0]], [[0.0, 0.0]]])
def test_equally_relevant_labels_need_no_weights(rows: list[list[float]]) -> None:
    assert vote_weights(csr_matrix(rows)) is None
