"""Reduced memories: by hand with a few vectors in the plane, then properties of any memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.types import Floats
from training.reduction import (
    Carriers,
    WholeMemory,
    budget_rows,
    facility_order,
    find_carriers,
    neighbours,
    representative_rows,
)

NEAR_ENOUGH = 1e-3  # neighbors are found in fp16
RNG = np.random.default_rng(0)


def at(*degrees: float) -> Floats:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


# Instance 0 has label 0; instance 1, close to it, both labels; instance 2, far off, label 1.
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
    _, rows = neighbours(vectors[:2], count=3)
    assert rows.tolist() == [[1, -1, -1], [0, -1, -1]], "filled up"


def test_carriers_by_hand() -> None:
    found = find_carriers(THREE, near=2)
    assert found.votes.tolist() == [0, 1, 3, 4]
    assert found.floor == pytest.approx([0.6, 0.8, -0.28, -1.0])
    assert found.start.tolist() == [0, 1, 2, 3, 4]
    assert found.carrier.tolist() == [1, 0, 2, 1]
    assert found.similarity == pytest.approx([0.96, 0.96, 0.28, 0.28], abs=NEAR_ENOUGH)


def test_the_row_that_others_need_most_is_kept_first() -> None:
    """Row 1 gains .36 for row 0 and 1.28 for row 2. Then row 2 gains .56 for row 1, row 0 .16."""
    assert facility_order(find_carriers(THREE, near=2), rng=RNG).tolist() == [1, 2, 0]


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


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), shares=st.lists(st.floats(0.02, 1.0), min_size=1, max_size=3))
def test_a_budget_is_kept_to(seed: int, shares: list[float]) -> None:
    found = representative_rows(drawn(seed), shares=shares)
    assert list(found) == sorted(set(shares), reverse=True)
    for share, rows in found.items():
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert len(rows) == budget_rows(share, total=30)


def test_smaller_budgets_beside_larger_ones_change_nothing() -> None:
    whole = drawn(1)
    alone = representative_rows(whole, shares=[0.3])[0.3]
    beside = representative_rows(whole, shares=[1.0, 0.3])
    assert np.array_equal(alone, beside[0.3])
    assert beside[1.0].tolist() == list(range(30))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_the_lazy_order_is_that_of_looking_at_every_row_each_time(seed: int) -> None:
    carriers = find_carriers(drawn(seed, rows=12, labels=4), near=5)
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
        representative_rows(THREE, shares=[0.5, share])


def test_at_least_one_row_stays() -> None:
    assert budget_rows(0.001, total=30) == 1
    assert [budget_rows(share, total=10) for share in (0.25, 0.26, 1.0)] == [2, 3, 10]
