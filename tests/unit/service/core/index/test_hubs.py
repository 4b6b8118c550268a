"""Hubs, keys that are near to many queries, come later."""

import numpy as np
import pytest

from service.core.index import hubs
from service.core.index.hubs import NEAREST, hubness, penalties, without_hubs

INSTANCES = 40


@pytest.fixture
def keys() -> np.ndarray:
    """40 known queries and 20 labels; the last label is their mean direction."""
    drawn = np.random.default_rng(0).standard_normal((INSTANCES + 20, 8)) + 0.5
    drawn[-1] = drawn[:INSTANCES].mean(axis=0)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn.astype(np.float16)


def test_it_is_the_mean_similarity_to_the_nearest_known_queries(keys: np.ndarray) -> None:
    similarities = keys.astype(np.float64) @ keys[:INSTANCES].astype(np.float64).T
    similarities[np.arange(INSTANCES), np.arange(INSTANCES)] = -np.inf  # not itself
    near = np.sort(similarities, axis=1)[:, -NEAREST:].mean(axis=1)
    found = hubness(keys, instances=INSTANCES)
    assert found == pytest.approx(near - near.mean(), abs=1e-5)
    assert found.argmax() == len(keys) - 1


def test_of_many_known_queries_a_sample_is_compared(
    keys: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hubness(keys, instances=INSTANCES)
    monkeypatch.setattr(hubs, "MOST_QUERIES", 20)
    sampled = hubness(keys, instances=INSTANCES)
    assert sampled.tolist() == hubness(keys, instances=INSTANCES).tolist() != whole.tolist()
    assert np.corrcoef(sampled, whole)[0, 1] > 0.8


@pytest.mark.parametrize("instances", [0, NEAREST])
def test_too_few_known_queries_say_nothing(keys: np.ndarray, instances: int) -> None:
    assert not hubness(keys, instances=instances).any()


def test_similarities_are_sorted_after_the_penalties() -> None:
    similarities = np.array([[0.5, 0.4, 0.3, -np.inf]], np.float32)
    rows = np.array([[7, 2, 5, -1]])
    subtracted = penalties(np.array([[0.5, -0.1, 0.0, 0.0]], np.float32), share=0.5)
    found, order = without_hubs(similarities, rows, subtracted)
    assert order.tolist() == [[2, 5, 7, -1]]
    assert found[0, :3] == pytest.approx([0.45, 0.3, 0.25], abs=1e-3)
    assert found[0, 3] == -np.inf
