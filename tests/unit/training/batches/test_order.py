"""The order in which rows are grouped into batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.batches.order import batch_rows, dropout_seed, step_rng, steps_per_epoch

ROWS = np.arange(100, 123)


def epoch(number: int, *, size: int, clusters: list[np.ndarray] | None = None) -> list[np.ndarray]:
    count = steps_per_epoch(len(ROWS), size)
    return [
        batch_rows(number * count + step, rows=ROWS, size=size, clusters=clusters, seed=1)
        for step in range(count)
    ]


@given(size=st.integers(2, 40), number=st.integers(0, 3))
def test_an_epoch_takes_no_row_twice(size: int, number: int) -> None:
    taken = np.concatenate(epoch(number, size=size))
    assert len(np.unique(taken)) == len(taken)
    assert len(taken) == (len(ROWS) if size > len(ROWS) else len(ROWS) // size * size)
    assert np.isin(taken, ROWS).all()


def test_epochs_differ_and_repeat_with_the_seed() -> None:
    first, second = epoch(0, size=5), epoch(1, size=5)
    assert any((a != b).any() for a, b in zip(first, second, strict=True))
    assert all((a == b).all() for a, b in zip(first, epoch(0, size=5), strict=True))


def test_clusters_stay_together() -> None:
    clusters = [np.arange(0, 6), np.arange(6, 12), np.arange(12, 18)]
    for batch in epoch(0, size=6, clusters=clusters)[:3]:
        assert len({(row - 100) // 6 for row in batch.tolist()}) == 1


def test_steps_draw_differently_and_repeatably() -> None:
    assert step_rng(0, 1).random() == step_rng(0, 1).random()
    assert step_rng(0, 1).random() != step_rng(0, 2).random()
    assert dropout_seed(0, 1, 0) != dropout_seed(0, 1, 1)


@pytest.mark.parametrize("rows", [1, 5])
def test_fewer_rows_than_a_batch_make_one(rows: int) -> None:
    assert steps_per_epoch(rows, 8) == 1
