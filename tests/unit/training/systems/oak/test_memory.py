"""Which items a query gets: the most similar ones, or those that it is linked to."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("torch")

from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import (
    NO_ITEM,
    ItemVectors,
    linked_items,
    nearest_items,
)

KEYS = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
QUERIES = np.array([[1, 0], [0, 1]], np.float32)


def test_the_most_similar_items_come_first() -> None:
    assert nearest_items(QUERIES, KEYS, count=2).tolist() == [[0, 2], [1, 2]]


def test_of_equal_items_the_first_counts_and_missing_ones_are_marked() -> None:
    same = np.array([[1, 0], [1, 0]], np.float32)
    assert nearest_items(QUERIES[:1], same, count=3).tolist() == [[0, 1, NO_ITEM]]


def test_the_rarest_linked_items_come_first() -> None:
    links = csr_matrix(np.array([[1, 1, 1], [0, 0, 0], [1, 0, 0]], np.float32))
    places = linked_items(links, np.array([9, 1, 5]), count=2)
    assert places.tolist() == [[1, 2], [NO_ITEM, NO_ITEM], [0, NO_ITEM]]


def test_given_items_take_the_place_of_predicted_ones() -> None:
    fusion = Fusion(2, heads=1, hidden=2)
    fusion.out.weight.data.copy_(fusion.value.weight.data)  # what is read is added to the query
    memory = ItemVectors(keys=KEYS, values=KEYS, attended=1, fusion=fusion)

    assert np.allclose(memory.fused(QUERIES), QUERIES, atol=1e-6), "the query's own direction"
    given = memory.fused(QUERIES, np.array([[1], [NO_ITEM]]))
    assert np.allclose(given, [[0.5**0.5, 0.5**0.5], [0, 1]], atol=1e-6)
