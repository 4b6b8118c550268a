"""Weighted metrics by hand; with equal weights they equal the plain metrics."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from training.evaluation import metrics
from training.evaluation import weighted_metrics as weighted

# Row 0 has the labels 0, 1, 2 (weights 4, 2, 1) and gets 1, a miss, 0. Row 1 has label 3 and gets
# a miss, 3, no answer. Row 2 has no label and must change nothing.
RANKED = np.array([[1, 4, 0], [0, 3, -1], [1, 2, 3]])
WEIGHTS = csr_matrix(np.array([[4, 2, 1, 0, 0], [0, 0, 0, 0.3, 0], [0, 0, 0, 0, 0]], np.float32))
LOG3 = 1 / math.log2(3)


@pytest.fixture
def outcome() -> metrics.RankingOutcome:
    return weighted.weighted_outcome(RANKED, WEIGHTS)


def test_gains_are_shares_of_the_largest_weight_of_a_row(outcome: metrics.RankingOutcome) -> None:
    assert outcome.hits.tolist() == [[0.5, 0.0, 1.0], [0.0, 1.0, 0.0]]
    assert outcome.best is not None
    assert outcome.best.tolist() == [[1.0, 0.5, 0.25], [1.0, 0.0, 0.0]]
    assert outcome.sizes.tolist() == [1.75, 1.0]


def test_weighted_metrics_by_hand(outcome: metrics.RankingOutcome) -> None:
    best = 1 + 0.5 * LOG3 + 0.25 / 2
    for metric, at_one, at_three in (
        (metrics.precision, (0.5 + 0) / 2, (1.5 / 3 + 1 / 3) / 2),
        (metrics.recall, (0.5 / 1.75 + 0) / 2, (1.5 / 1.75 + 1) / 2),
        (metrics.ndcg, (0.5 + 0) / 2, ((0.5 + 1 / 2) / best + LOG3) / 2),
    ):
        assert metric(outcome, k=1) == pytest.approx(at_one)
        assert metric(outcome, k=3) == pytest.approx(at_three)


def test_a_filtered_pair_counts_neither_as_ranked_nor_as_a_positive() -> None:
    filtered = csr_matrix(np.array([[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0] * 5], dtype=bool))
    outcome = weighted.weighted_outcome(RANKED, WEIGHTS, filtered=filtered)
    assert outcome.hits.tolist() == [[1.0, 0.0, 0.0]]
    assert outcome.best is not None and outcome.best.tolist() == [[1.0, 0.5, 0.0]]
    assert outcome.sizes.tolist() == [1.5]


def test_the_table_is_in_percent_under_names_of_its_own() -> None:
    table = weighted.weighted_table(padded(RANKED), WEIGHTS)
    names = [f"{name}@{k}" for name in ("P", "nDCG") for k in (1, 3, 5)]
    assert list(table) == [f"weighted {name}" for name in (*names, "R@10", "R@30", "R@100")]
    assert table["weighted P@1"] == pytest.approx(25.0)


def padded(ranked: np.ndarray) -> np.ndarray:
    return np.pad(ranked, ((0, 0), (0, 100 - ranked.shape[1])), constant_values=-1)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_equal_weights_give_the_plain_metrics(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows, labels, k = rng.integers(1, 6), int(rng.integers(3, 9)), 3
    scale = rng.uniform(0.1, 9.0, size=(rows, 1)).astype(np.float32)
    truth = rng.random((rows, labels)) < 0.4
    truth[0, 0] = True
    ranked = np.array([rng.permutation(labels)[:k] for _ in range(rows)])
    filtered = csr_matrix((rng.random((rows, labels)) < 0.1) & (np.arange(labels) > 0))
    ranked, positives = padded(ranked), csr_matrix(truth * scale)
    found = weighted.weighted_table(ranked, positives, filtered=filtered)
    plain = metrics.evaluate(
        ranked, positives, inverse_propensities=np.ones(labels), filtered=filtered
    )
    for name, value in found.items():
        assert value == pytest.approx(plain[name.removeprefix("weighted ")]), name


def test_weights_differ_only_within_a_row() -> None:
    assert weighted.weights_differ(WEIGHTS)
    assert not weighted.weights_differ(csr_matrix(np.array([[2.0, 2.0], [3.0, 0.0], [0.0, 0.0]])))
    assert not weighted.weights_differ(csr_matrix((2, 3)))
