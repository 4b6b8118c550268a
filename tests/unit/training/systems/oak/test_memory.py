"""A query gets the most similar items, or those that it is linked to."""

import numpy as np
import pytest

pytest.importorskip("torch")

from training.datasets.metadata_links import NO_ITEM
from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import ItemVectors, nearest_items

KEYS = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
QUERIES = np.array([[1, 0], [0, 1]], np.float32)


def test_the_most_similar_items_come_first() -> None:
    assert nearest_items(QUERIES, KEYS, count=2).tolist() == [[0, 2], [1, 2]]


def test_of_equal_items_the_first_counts_and_missing_ones_are_marked() -> None:
    same = np.array([[1, 0], [1, 0]], np.float32)
    assert nearest_items(QUERIES[:1], same, count=3).tolist() == [[0, 1, NO_ITEM]]


def test_the_best_of_many_are_those_of_a_full_sort() -> None:
    chance = np.random.default_rng(5)
    keys = chance.integers(-2, 3, (60, 4)).astype(np.float32)  # with many ties
    queries = chance.integers(-2, 3, (50, 4)).astype(np.float32)
    for count in (1, 7, 59, 60, 61):
        order = np.argsort(-(queries @ keys.T), axis=1, kind="stable")[:, :count]
        missing = np.full((len(queries), max(0, count - len(keys))), NO_ITEM)
        found = nearest_items(queries, keys, count=count)
        assert found.tolist() == np.hstack([order, missing]).tolist()
    assert nearest_items(queries[:1], keys[:0], count=2).tolist() == [[NO_ITEM, NO_ITEM]]


def test_given_items_take_the_place_of_predicted_ones() -> None:
    fusion = Fusion(2, heads=1, hidden=2)
    fusion.out.weight.data.copy_(fusion.value.weight.data)  # adds an item's value to the query
    memory = ItemVectors(keys=KEYS, values=KEYS, attended=1, fusion=fusion)

    assert np.allclose(memory.fused(QUERIES), QUERIES, atol=1e-6), "the query's own direction"
    given = memory.fused(QUERIES, np.array([[1], [NO_ITEM]]))
    assert np.allclose(given, [[0.5**0.5, 0.5**0.5], [0, 1]], atol=1e-6)
