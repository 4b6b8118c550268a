"""Smaller memories: each method by hand on a few vectors in the plane, then what all must hold."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.types import Floats
from training.reduction import METHODS, budget_rows, reduce
from training.reduction.carriers import Carriers, find_carriers
from training.reduction.coverage import coverage_order
from training.reduction.memory import WholeMemory, kept, neighbours
from training.reduction.merge import overlap
from training.reduction.redundant import loss, removal_order
from training.reduction.representative import facility_order

NEAR_ENOUGH = 1e-3  # neighbours are found in fp16
RNG = np.random.default_rng(0)


def memory(
    vectors: Sequence[Sequence[float]], voted: Sequence[set[int]], labels: int
) -> WholeMemory:
    """Instances with their labels; every label's key is (0, -1)."""
    y = [[float(label in row) for label in range(labels)] for row in voted]
    return WholeMemory(
        instances=np.array(vectors, np.float32),
        labels_of=csr_matrix(np.array(y, np.float32)),
        labels=np.tile(np.array([[0.0, -1.0]], np.float32), (labels, 1)),
    )


def at(*degrees: float) -> Floats:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


# Three instances: 0 for label 0; 1, very near it, for both; 2, far off, for label 1.
THREE = WholeMemory(
    instances=np.array([[1.0, 0.0], [0.96, 0.28], [0.0, 1.0]], np.float32),
    labels_of=csr_matrix(np.array([[1, 0], [1, 1], [0, 1]], np.float32)),
    labels=np.array([[0.6, 0.8], [0.0, -1.0]], np.float32),
)


def test_neighbours_of_equal_vectors_are_the_others() -> None:
    vectors = np.tile(np.array([[0.6, 0.8]], np.float32), (5, 1))
    similarities, rows = neighbours(vectors, count=2)
    assert rows.shape == (5, 2)
    assert not (rows == np.arange(5)[:, None]).any()
    assert similarities == pytest.approx(np.ones((5, 2)), abs=NEAR_ENOUGH)


def test_fewer_neighbours_than_asked_for_are_filled_up() -> None:
    _, rows = neighbours(at(0, 90), count=3)
    assert rows.tolist() == [[1, -1, -1], [0, -1, -1]]


def test_carriers_by_hand() -> None:
    found = find_carriers(THREE, near=2)
    assert found.votes.tolist() == [0, 1, 3, 4]
    assert found.floor == pytest.approx([0.6, 0.8, -0.28, -1.0])
    assert found.start.tolist() == [0, 1, 2, 3, 4]
    assert found.carrier.tolist() == [1, 0, 2, 1]
    assert found.similarity == pytest.approx([0.96, 0.96, 0.28, 0.28], abs=NEAR_ENOUGH)


def test_the_most_redundant_row_goes_first() -> None:
    """Row 0 loses .04. Then row 1's label 0 has only its own key, .2, and label 1 .72: 2 goes."""
    carriers = find_carriers(THREE, near=2)
    everyone = np.ones(3, bool)
    losses = [loss(carriers, row, stays=everyone) for row in range(3)]
    assert losses == pytest.approx([0.04, 0.76, 0.72], abs=NEAR_ENOUGH)
    without = np.array([False, True, True])
    assert loss(carriers, 1, stays=without) == pytest.approx(0.92, abs=NEAR_ENOUGH)
    assert removal_order(carriers).tolist() == [0, 2, 1]


def test_the_row_that_others_need_most_is_kept_first() -> None:
    """Row 1 adds .36 for row 0 and 1.28 for row 2; row 2 then .56 for row 1, row 0 .16."""
    assert facility_order(find_carriers(THREE, near=2), rng=RNG).tolist() == [1, 2, 0]


def test_every_label_is_covered_before_any_is_twice() -> None:
    five = memory(at(0, 1, 2, 3, 4), [{0}, {0, 1}, {1}, {2}, set()], 3)
    order = coverage_order(five, rng=RNG).tolist()
    assert order[:2] == [1, 3]
    assert set(order[2:4]) == {0, 2}
    assert order[4] == 4


def test_jaccard_by_hand() -> None:
    y = csr_matrix(np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]], np.float32))
    left, right = np.array([0, 0, 1, 3]), np.array([1, 2, 1, 3])
    assert overlap(y, left=left, right=right) == pytest.approx([0.5, 0.0, 1.0, 0.0])


def test_merged_rows_are_their_mean_with_all_their_labels() -> None:
    """0 and 10 degrees come first, then 25: the mean lies near 10 degrees, whose text stands."""
    four = memory(at(0, 10, 25, 90), [{0}, {0}, {0, 1}, {2}], 3)
    found = reduce(four, method="merge", shares=[0.5])[0.5]
    mean = at(0, 10, 25).sum(axis=0)
    assert found.instances[0] == pytest.approx(mean / np.linalg.norm(mean))
    assert found.instances[1] == pytest.approx(at(90)[0], abs=1e-6)
    assert found.labels_of.toarray().tolist() == [[1, 1, 0], [0, 0, 1]]
    assert found.texts_of.tolist() == [1, 3]


def test_rows_that_share_labels_are_merged_before_nearer_ones_that_do_not() -> None:
    four = memory(at(0, 10, 25, 180), [{0}, {1}, {1}, {2}], 3)
    found = reduce(four, method="merge", shares=[0.75])[0.75]
    assert found.labels_of.toarray().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_kept_rows_stand_in_their_order() -> None:
    found = kept(THREE, np.array([2, 0]))
    assert found.texts_of.tolist() == [0, 2]
    assert found.labels_of.toarray().tolist() == [[1, 0], [0, 1]]


# All methods -----------------------------------------------------------------------------


def drawn(seed: int, *, rows: int = 30, labels: int = 7) -> WholeMemory:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((rows + labels, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    y = rng.random((rows, labels)) < 0.2  # some rows have no label, some labels no row
    return WholeMemory(
        instances=vectors[:rows],
        labels_of=csr_matrix(y.astype(np.float32)),
        labels=vectors[rows:],
    )


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), shares=st.lists(st.floats(0.02, 1.0), min_size=1, max_size=3))
def test_a_budget_is_kept_to(method: str, seed: int, shares: list[float]) -> None:
    whole = drawn(seed)
    found = reduce(whole, method=method, shares=shares)
    assert sorted(found) == sorted(set(shares))
    for share, reduced in found.items():
        rows = budget_rows(share, total=30)
        assert reduced.instances.shape == (rows, 4)
        assert reduced.labels_of.shape == (rows, 7)
        assert np.linalg.norm(reduced.instances, axis=1) == pytest.approx(np.ones(rows), abs=1e-5)
        assert len(set(reduced.texts_of.tolist())) == rows


@pytest.mark.parametrize("method", METHODS)
def test_smaller_budgets_beside_larger_ones_change_nothing(method: str) -> None:
    whole = drawn(1)
    alone = reduce(whole, method=method, shares=[0.3])[0.3]
    beside = reduce(whole, method=method, shares=[1.0, 0.3])[0.3]
    assert np.array_equal(alone.instances, beside.instances)
    assert (alone.labels_of != beside.labels_of).nnz == 0


@pytest.mark.parametrize("method", METHODS)
def test_the_whole_memory_stays_as_it_is(method: str) -> None:
    whole = drawn(2)
    found = reduce(whole, method=method, shares=[1.0])[1.0]
    assert np.array_equal(found.instances, whole.instances)
    assert (found.labels_of != whole.labels_of).nnz == 0
    assert found.texts_of.tolist() == list(range(30))


def test_merging_loses_no_label() -> None:
    whole = drawn(3)
    found = reduce(whole, method="merge", shares=[0.1])[0.1]
    assert set(found.labels_of.indices.tolist()) == set(whole.labels_of.indices.tolist())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_lazy_orders_are_those_of_looking_at_every_row_each_time(seed: int) -> None:
    carriers = find_carriers(drawn(seed, rows=12, labels=4), near=5)
    order = removal_order(carriers).tolist()
    stays = np.ones(12, bool)
    for row in order:
        losses = {other: loss(carriers, other, stays=stays) for other in np.flatnonzero(stays)}
        assert losses[row] == pytest.approx(min(losses.values()))
        stays[row] = False
    best = carriers.floor.copy()
    for place, row in enumerate(facility_order(carriers, rng=RNG)):
        later = facility_order(carriers, rng=np.random.default_rng(0))[place:]
        gains = {other: gain(carriers, other, best) for other in later.tolist()}
        assert gain(carriers, int(row), best) == pytest.approx(max(gains.values(), default=0.0))
        mine = carriers.carrier == row
        np.maximum.at(best, carriers.vote[mine], carriers.similarity[mine])


def gain(carriers: Carriers, row: int, best: Floats) -> float:
    mine = carriers.carrier == row
    return float((carriers.similarity[mine] - best[carriers.vote[mine]]).clip(0.0).sum())


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match="above 0 and not above 1"):
        reduce(THREE, method="random", shares=[0.5, share])


def test_at_least_one_row_stays() -> None:
    assert budget_rows(0.001, total=30) == 1
    assert [budget_rows(share, total=10) for share in (0.25, 0.26, 1.0)] == [2, 3, 10]


def test_an_unknown_method_is_refused_with_the_known() -> None:
    with pytest.raises(InvalidInput, match="'magic' is unknown; known are random, "):
        reduce(THREE, method="magic", shares=[0.5])
