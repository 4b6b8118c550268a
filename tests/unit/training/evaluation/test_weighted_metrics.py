"""The weighted metrics by hand, and where weights are equal, against the plain ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from training.evaluation import metrics
from training.evaluation import weighted_metrics as weighted

# Row 0 wants label 0 (weight 4), 1 (weight 2) and 2 (weight 1) and gets 1, a miss, 0. Row 1 wants
# label 3 and gets a miss, 3, no answer. Row 2 has no label and must change nothing.
RANKED = np.array([[1, 4, 0], [0, 3, -1], [1, 2, 3]])
WEIGHTS = csr_matrix(np.array([[4, 2, 1, 0, 0], [0, 0, 0, 0.3, 0], [0, 0, 0, 0, 0]], np.float32))
LOG3 = 1 / math.log2(3)


@pytest.fixture
def gains() -> weighted.Gains:
    return weighted.gains_of(RANKED, WEIGHTS)


def test_gains_are_shares_of_the_largest_weight_of_a_row(gains: weighted.Gains) -> None:
    assert gains.ranked.tolist() == [[0.5, 0.0, 1.0], [0.0, 1.0, 0.0]]
    assert gains.best.tolist() == [[1.0, 0.5, 0.25], [1.0, 0.0, 0.0]]
    assert gains.total.tolist() == [1.75, 1.0]


def test_weighted_precision_by_hand(gains: weighted.Gains) -> None:
    assert weighted.precision(gains, k=1) == pytest.approx((0.5 + 0) / 2)
    assert weighted.precision(gains, k=3) == pytest.approx((1.5 / 3 + 1 / 3) / 2)


def test_weighted_recall_by_hand(gains: weighted.Gains) -> None:
    assert weighted.recall(gains, k=1) == pytest.approx((0.5 / 1.75 + 0) / 2)
    assert weighted.recall(gains, k=3) == pytest.approx((1.5 / 1.75 + 1) / 2)


def test_weighted_ndcg_by_hand(gains: weighted.Gains) -> None:
    assert weighted.ndcg(gains, k=1) == pytest.approx((0.5 + 0) / 2)
    best = 1 + 0.5 * LOG3 + 0.25 / 2
    assert weighted.ndcg(gains, k=3) == pytest.approx(((0.5 + 1 / 2) / best + LOG3) / 2)


def test_a_filtered_pair_counts_neither_as_ranked_nor_as_a_positive() -> None:
    filtered = csr_matrix(np.array([[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0] * 5], dtype=bool))
    gains = weighted.gains_of(RANKED, WEIGHTS, filtered=filtered)
    assert gains.ranked.tolist() == [[1.0, 0.0, 0.0]]
    assert gains.best.tolist() == [[1.0, 0.5, 0.0]]
    assert gains.total.tolist() == [1.5]


def test_the_table_is_in_percent_under_names_of_its_own() -> None:
    table = weighted.weighted_table(RANKED, WEIGHTS, ks=(1, 3), recall_ks=(3,))
    assert list(table) == [
        "weighted P@1",
        "weighted P@3",
        "weighted nDCG@1",
        "weighted nDCG@3",
        "weighted R@3",
    ]
    assert table["weighted P@1"] == pytest.approx(25.0)


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
    found = weighted.weighted_table(
        ranked, csr_matrix(truth * scale), filtered=filtered, ks=(1, 3), recall_ks=(2,)
    )
    plain = metrics.evaluate(
        ranked,
        csr_matrix(truth * scale),
        inverse_propensities=np.ones(labels),
        ks=(1, 3),
        recall_ks=(2,),
        filtered=filtered,
    )
    for name, value in found.items():
        assert value == pytest.approx(plain[name.removeprefix("weighted ")]), name


def test_weights_differ_only_within_a_row() -> None:
    assert weighted.weights_differ(WEIGHTS)
    assert not weighted.weights_differ(csr_matrix(np.array([[2.0, 2.0], [3.0, 0.0], [0.0, 0.0]])))
    assert not weighted.weights_differ(csr_matrix((2, 3)))


def test_a_label_that_is_ranked_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ranks a label twice"):
        weighted.gains_of(np.array([[1, 1, 0]]), WEIGHTS[:1])
