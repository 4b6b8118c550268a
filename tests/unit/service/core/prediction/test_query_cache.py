"""The cache returns what was put in, forgets the least recently used, and counts."""

import numpy as np

from service.core.prediction.query_cache import QueryCache


def vector(value: float) -> np.ndarray:
    return np.full(2, value, np.float32)


def fill(cache: QueryCache, *queries: str) -> tuple[list[int], list[float]]:
    """Positions that were missing, and the first component of each line (-1: untouched)."""
    vectors = np.full((len(queries), 2), -1, np.float32)
    return cache.fill(queries, vectors), vectors[:, 0].tolist()


def test_known_queries_are_filled_and_unknown_ones_reported() -> None:
    cache = QueryCache(4)
    cache.add({"a": vector(1), "b": vector(2)})
    assert fill(cache, "b", "x", "a", "b") == ([1], [2, -1, 1, 2])
    assert (cache.hits, cache.misses) == (3, 1)


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = QueryCache(2)
    cache.add({"a": vector(1), "b": vector(2)})
    fill(cache, "a")
    cache.add({"c": vector(3)})
    assert fill(cache, "a", "b", "c") == ([1], [1, -1, 3])


def test_a_cache_of_no_entries_keeps_none() -> None:
    cache = QueryCache(0)
    cache.add({"a": vector(1)})
    assert fill(cache, "a") == ([0], [-1])


def test_what_the_caller_does_with_a_filled_vector_leaves_the_cache_alone() -> None:
    cache = QueryCache(1)
    cache.add({"a": vector(1)})
    vectors = np.zeros((1, 2), np.float32)
    cache.fill(["a"], vectors)
    vectors[:] = 9
    assert fill(cache, "a") == ([], [1])
