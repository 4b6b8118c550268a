"""Rows that share a key are found, and take a limited share of a search's places."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.index.equal_keys import NO_EQUAL_KEYS, equal_keys
from service.core.index.exact import exact_search
from service.core.index.found_rows import (
    nearest_sharing,
    one_similarity_per_key,
    places_per_key,
    search_sharing,
    within_share,
)
from service.core.index.protocol import RowFilter

A, B, C = [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]
VECTORS = np.array([A, B, A, C, B, A], np.float16)


def test_nodes_become_their_rows_in_order() -> None:
    rows, place = equal_keys(VECTORS).expand(np.array([1, 3, 0, -1]))
    assert rows.tolist() == [1, 4, 3, 0, 2, 5, -1]
    assert place.tolist() == [0, 0, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("queries", [1, 65])  # few are scanned, many multiplied
def test_of_equal_keys_an_exact_search_finds_the_first(queries: int) -> None:
    random = np.random.default_rng(0)
    once = random.standard_normal((500, 32)).astype(np.float16)
    keys = np.concatenate([once, once])
    asked = random.standard_normal((queries, 32)).astype(np.float32)
    everything = RowFilter(start=0, stop=len(keys))
    _, rows = exact_search(keys, asked, count=101, row_filter=everything)
    order = np.argsort(-(asked @ once.T.astype(np.float32)), axis=1)
    assert rows[:, -1].tolist() == order[:, 50].tolist()  # the 51st key: its second row is left out


def test_without_equal_keys_each_row_is_a_node() -> None:
    for equal in (equal_keys(np.array([A, B, C], np.float16)), NO_EQUAL_KEYS):
        assert equal.nodes(3).tolist() == [0, 1, 2]
        assert equal.node_of(np.array([2, 0])).tolist() == [2, 0]
        assert equal.expand(np.array([2, 0]))[0].tolist() == [2, 0]
    assert equal_keys(np.zeros((0, 2), np.float16)).nodes(0).tolist() == []


@given(st.lists(st.integers(0, 5), max_size=60))
def test_equal_keys_are_those_that_a_dictionary_finds(drawn: list[int]) -> None:
    vectors = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float16)[drawn]
    equal = equal_keys(vectors.reshape(-1, 4))
    expected = [drawn.index(key) for key in drawn]
    assert equal.node_of(np.arange(len(drawn))).tolist() == expected
    rows, _ = equal.expand(equal.nodes(len(drawn)))
    assert sorted(rows.tolist()) == list(range(len(drawn)))


@pytest.mark.parametrize(("depth", "places"), [(1, 1), (4, 1), (5, 2), (200, 50), (2000, 500)])
def test_one_key_takes_a_quarter_of_the_places(depth: int, places: int) -> None:
    assert places_per_key(depth) == places


def test_a_key_with_too_many_rows_keeps_its_first_and_its_last() -> None:
    line = np.array([9, 7, 7, 7, 7, 7, 5, 5], np.float32)
    kept = [True, True, True, False, False, True, True, True]
    assert within_share(line, 3).tolist() == kept
    assert within_share(line, 1).tolist() == [True, True, *[False] * 4, True, False]
    assert within_share(line[:0], 3).tolist() == []


def test_merged_lines_keep_the_share_and_fill_up_behind_it() -> None:
    similarities = np.array([[9, 7, 7, 7, 7, 5, 4]], np.float32)
    rows = np.array([[8, 1, 2, 30, 40, 5, 6]])
    found = nearest_sharing(similarities, rows, count=5, share=2)
    assert found[0].tolist() == [[9, 7, 7, 5, 4]]
    assert found[1].tolist() == [[8, 1, 40, 5, 6]]


def test_rows_of_one_key_have_its_largest_similarity_and_keep_their_order() -> None:
    """Parts of a memory round one key's similarities differently; row 5 has another key."""
    bits = np.float32(2**-24)
    similarities = np.array(
        [[0.9, 0.5 + bits, 0.5, 0.5, 0.3], [0.9, 0.8, 0.7, 0.6, -np.inf]], np.float32
    )
    rows = np.array([[8, 30, 5, 1, 6], [1, 2, 3, 4, -1]])
    keys = np.eye(31, dtype=np.float16)
    keys[30] = keys[1]
    found = one_similarity_per_key(similarities, rows, share=1, vectors_of=lambda rows: keys[rows])
    assert found[0].tolist() == [
        np.array([0.9, 0.5 + bits, 0.5 + bits, 0.5, 0.3], np.float32).tolist(),
        similarities[1].tolist(),
    ]
    assert found[1].tolist() == [[8, 1, 30, 5, 6], [1, 2, 3, 4, -1]]


def test_a_search_goes_on_where_one_key_crowds_out_the_others() -> None:
    """Ninety rows of one key rank before ten others, so each search asks for more rows."""
    similarities = np.array([*[0.9] * 90, *np.linspace(0.8, 0.1, 10)], np.float32)
    asked: list[int] = []

    def search(queries: np.ndarray, *, count: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(count)
        return similarities[None, :count].copy(), np.arange(count)[None]

    query = np.zeros((1, 2), np.float32)
    _, rows = search_sharing(search, query, count=8, most=100, share=2)
    assert rows.tolist() == [[0, 89, 90, 91, 92, 93, 94, 95]]
    assert asked == [8, 32, 100]
    _, rows = search_sharing(search, query, count=8, most=100, share=None)
    assert rows.tolist() == [list(range(8))]
