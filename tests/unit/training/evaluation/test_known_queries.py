"""Known queries are weighted by clicks, and their most clicked label is the right one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from training.evaluation.known_queries import FIRST, IN_TEN, KnownQueries

NONE = csr_matrix((3, 12), dtype=bool)


def of_clicks(*rows: dict[int, float]) -> csr_matrix:
    clicks = np.zeros((len(rows), 12), np.float32)
    for row, found in enumerate(rows):
        clicks[row, list(found)] = list(found.values())
    return csr_matrix(clicks)


def test_a_query_counts_as_often_as_it_was_clicked() -> None:
    known = KnownQueries.of_rows(of_clicks({0: 70, 1: 20}, {2: 9}, {3: 0.5, 4: 0.5}), NONE)
    assert (known.of, known.clicks, known.rows.tolist()) == (3, 100.0, [0, 1, 2])
    ranked = np.array([[1, 0, -1], [2, -1, -1], [4, 3, -1]])
    # 20 clicks on the second product do not make it right; both of two equal ones are.
    assert known.measure(ranked) == pytest.approx({FIRST: 10.0, IN_TEN: 100.0})
    eleventh = np.array([[*range(1, 12), 0], [5] * 12, [5] * 12])
    assert known.measure(eleventh) == {FIRST: 0.0, IN_TEN: 0.0}


def test_filtered_pairs_are_neither_right_nor_in_the_way() -> None:
    filtered = csr_matrix(of_clicks({0: 1}, {}, {3: 1}) != 0)
    known = KnownQueries.of_rows(of_clicks({0: 70, 1: 20}, {2: 9}, {3: 5}), filtered)
    assert (known.of, known.clicks) == (2, 29.0)
    assert known.measure(np.array([[0, 1], [3, 2]])) == pytest.approx(
        {FIRST: 100 * 20 / 29, IN_TEN: 100.0}
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 3_000))
def test_a_sample_estimates_all(seed: int, rows: int) -> None:
    chance = np.random.default_rng(seed)
    clicks = np.ceil(chance.pareto(1.0, rows) + 0.01)
    labels_of = csr_matrix((clicks, (np.arange(rows), chance.integers(0, 5, rows))), (rows, 5))
    filtered = csr_matrix(labels_of.shape, dtype=bool)
    whole = KnownQueries.of_rows(labels_of, filtered, most=rows)
    sample = KnownQueries.of_rows(labels_of, filtered, most=400)
    ranked = np.where(chance.random(rows) < 0.3, labels_of.indices, -1)[:, None]
    assert len(sample.rows) == min(rows, 400)
    assert sample.shares.sum() == pytest.approx(1.0)
    assert (sample.of, sample.clicks) == (whole.of, whole.clicks)
    # The half of the sample with the most clicks is exact; the others stand for the rest.
    found, exact = sample.measure(ranked[sample.rows]), whole.measure(ranked)
    assert found[FIRST] == pytest.approx(exact[FIRST], abs=15)
    assert np.array_equal(sample.rows, KnownQueries.of_rows(labels_of, filtered, most=400).rows)


def test_without_rows_nothing_is_wrong() -> None:
    nothing = csr_matrix((0, 12), dtype=np.float32)
    known = KnownQueries.of_rows(nothing, csr_matrix(nothing.shape, dtype=bool))
    assert known.measure(np.zeros((0, 10), np.int64)) == {FIRST: 100.0, IN_TEN: 100.0}
