"""Maximal marginal relevance: relevant keywords that are unlike those before them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction.diversity import maximal_marginal_relevance

SCORES = np.array([0.5, 0.4, 0.3, 0.1])
KEYS = np.array([[1, 0], [1, 0], [0, 1], [0.6, 0.8]], np.float32)


@pytest.mark.parametrize(
    ("diversity", "order"),
    [
        (0.0, [0, 1, 2, 3]),
        (0.3, [0, 2, 1, 3]),  # the second one is like the first: 0.7 * 0.8 - 0.3 < 0.7 * 0.6
        (1.0, [0, 2, 3, 1]),
    ],
)
def test_labels_like_better_ones_come_later(diversity: float, order: list[int]) -> None:
    for count in (1, 3, 4, 9):
        chosen = maximal_marginal_relevance(SCORES, KEYS, diversity=diversity, count=count)
        assert chosen == order[:count]


@given(
    st.lists(st.floats(0.0, 10.0), max_size=8),
    st.floats(0.0, 1.0),
    st.integers(1, 10),
    st.integers(0, 2**32 - 1),
)
def test_each_label_is_chosen_once_the_best_first(
    scores: list[float], diversity: float, count: int, seed: int
) -> None:
    ranked = np.sort(np.array(scores))[::-1]
    keys = np.random.default_rng(seed).standard_normal((len(scores), 3)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    chosen = maximal_marginal_relevance(ranked, keys, diversity=diversity, count=count)
    assert len(chosen) == len(set(chosen)) == min(count, len(scores))
    assert chosen[:1] == [0][: len(scores)]
