"""The split by time; the one by hash is tested with the tables that it splits."""

import numpy as np
import pytest

from training.datasets.train_test_split import split_by_time


def test_no_row_of_train_is_newer_than_a_test_query() -> None:
    rng = np.random.default_rng(0)
    newest = rng.integers(0, 50, 200).astype(float)
    queries = [f"query {row}" for row in rng.permutation(200)]
    test = split_by_time(queries, newest, fraction=0.3)
    assert test.sum() == 60
    assert newest[~test].max() <= newest[test].min()


def test_equal_times_do_not_depend_on_the_order() -> None:
    queries = [f"query {row}" for row in range(9)]
    forward = split_by_time(queries, np.zeros(9), fraction=0.4)
    backward = split_by_time(queries[::-1], np.zeros(9), fraction=0.4)
    assert forward.tolist() == backward.tolist()[::-1]


@pytest.mark.parametrize("fraction", [0.0, 0.01])
def test_nothing_is_held_out(fraction: float) -> None:
    assert not split_by_time(["a", "b"], np.array([1.0, 2.0]), fraction=fraction).any()
