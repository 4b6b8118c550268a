"""Live rows: what a view counts is what it sees, and burying a row makes a new value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.live import LiveRows, LiveStore, NewRow, dead_rows, without
from service.core.types import RowKind

FIRST = 100  # the memory's number of the store's row 0
VECTORS = np.eye(4, dtype=np.float16)
KINDS = (RowKind.LABEL, RowKind.INSTANCE, RowKind.INSTANCE, RowKind.LABEL)


@pytest.fixture
def rows() -> LiveRows:
    store = LiveStore(capacity=11, dimension=4)
    new = [
        NewRow(kind=kind, text=f"text {place}", votes=np.array([place], np.int32))
        for place, kind in enumerate(KINDS)
    ]
    store.write(0, new, VECTORS)
    return LiveRows(store=store, first=FIRST, count=4)


def found(rows: LiveRows, kind: RowKind | None = None) -> list[int]:
    """The rows that a search returns, in order of their number."""
    queries = np.full((1, 4), 0.5, np.float32)
    numbers = rows.search(queries, count=9, kind=kind)[1][0]
    return sorted(numbers[numbers >= 0].tolist())


def test_rows_are_numbered_as_the_memory_does(rows: LiveRows) -> None:
    similarities, numbers = rows.search(VECTORS[2:3].astype(np.float32), count=1, kind=None)
    assert numbers.tolist() == [[FIRST + 2]]
    assert similarities.tolist() == [[1.0]]
    assert [number in rows for number in (99, 100, 103, 104)] == [False, True, True, False]


def test_a_search_keeps_to_the_kind(rows: LiveRows) -> None:
    assert found(rows) == [100, 101, 102, 103]
    assert found(rows, RowKind.INSTANCE) == [101, 102]
    assert found(rows, RowKind.LABEL) == [100, 103]


def test_rows_behind_the_count_are_not_seen(rows: LiveRows) -> None:
    fewer = LiveRows(store=rows.store, first=FIRST, count=2)
    assert found(fewer) == [100, 101]
    assert found(fewer, RowKind.INSTANCE) == [101]


def test_a_buried_row_is_gone_from_the_new_value_only(rows: LiveRows) -> None:
    later = rows.bury(101)
    assert found(later) == [100, 102, 103]
    assert found(later, RowKind.INSTANCE) == [102]
    assert found(rows) == [100, 101, 102, 103]
    assert (rows.dead, later.dead) == (0, 1)


def test_nothing_is_found_where_all_rows_of_a_kind_are_dead(rows: LiveRows) -> None:
    assert found(rows.bury(101).bury(102), RowKind.INSTANCE) == []


def test_a_second_write_at_the_same_place_leaves_nothing_of_the_first(rows: LiveRows) -> None:
    again = NewRow(kind=RowKind.LABEL, text="again", votes=np.array([9], np.int32))
    rows.store.write(1, [again], VECTORS[3:])
    assert rows.store.texts == ["text 0", "again"]
    assert [votes.tolist() for votes in rows.store.votes] == [[0], [9]]
    assert found(LiveRows(store=rows.store, first=FIRST, count=2), RowKind.LABEL) == [100, 101]


@given(st.integers(min_value=1, max_value=40), st.data())
def test_a_bitmap_forgets_exactly_the_buried_rows(rows: int, data: st.DataObject) -> None:
    dead = data.draw(st.sets(st.integers(min_value=0, max_value=rows - 1)))
    alive = None
    for row in dead:
        alive = without(alive, row, rows)
    assert dead_rows(alive, rows) == len(dead)
    if alive is not None:
        bits = np.unpackbits(alive, bitorder="little", count=rows)
        assert set(np.flatnonzero(bits == 0).tolist()) == dead


def test_dead_rows_counts_only_the_first_rows() -> None:
    alive = without(without(None, 1, 12), 7, 12)
    assert [dead_rows(alive, rows) for rows in (1, 2, 8, 12)] == [0, 1, 2, 2]
