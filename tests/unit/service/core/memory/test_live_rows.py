"""Live rows: a view sees the rows that it counts, and a tombstone makes a new value."""

import numpy as np
import pytest

from service.core.memory.live_rows import LiveRows, LiveStore, NewRow
from service.core.types import RowKind

FIRST = 100  # the row number of the store's row 0
VECTORS = np.eye(4, dtype=np.float16)
KINDS = (RowKind.LABEL, RowKind.INSTANCE, RowKind.INSTANCE, RowKind.LABEL)


def row(place: int, kind: RowKind, text: str = "") -> NewRow:
    """A row that votes for column `place`; an instance row also votes for the next column."""
    votes = [place] if kind is RowKind.LABEL else [place, place + 1]
    return NewRow(
        kind=kind,
        text=text or f"text {place}",
        votes=np.array(votes, np.int32),
        vector=VECTORS[place],
    )


@pytest.fixture
def rows() -> LiveRows:
    empty = LiveRows(store=LiveStore(capacity=11, dimension=4), first=FIRST, count=0)
    return empty.append([row(place, kind) for place, kind in enumerate(KINDS)])


def found(rows: LiveRows, kind: RowKind | None = None) -> list[int]:
    """The rows that a search returns, in order of their number."""
    queries = np.full((1, 4), 0.5, np.float32)
    numbers = rows.search(queries, count=9, ef=8, kind=kind)[1][0]
    return sorted(numbers[numbers >= 0].tolist())


def test_rows_have_the_numbers_of_the_memory(rows: LiveRows) -> None:
    queries = VECTORS[2:3].astype(np.float32)
    similarities, numbers = rows.search(queries, count=1, ef=8, kind=None)
    assert numbers.tolist() == [[FIRST + 2]]
    assert similarities.tolist() == [[1.0]]
    assert (rows.first, rows.stop, rows.stored_rows) == (FIRST, FIRST + 4, 4)
    assert rows.alive_rows().tolist() == [100, 101, 102, 103]


def test_rows_can_be_read_in_any_order(rows: LiveRows) -> None:
    numbers = np.array([103, 101, 103])
    assert rows.is_instance(numbers).tolist() == [False, True, False]
    columns, counts = rows.votes(numbers)
    assert (columns.tolist(), counts.tolist()) == ([3, 1, 2, 3], [1, 2, 1])
    assert rows.text(102) == "text 2"
    assert np.array_equal(rows.vectors(numbers), VECTORS[[3, 1, 3]])


def test_a_search_keeps_to_the_kind(rows: LiveRows) -> None:
    assert found(rows) == [100, 101, 102, 103]
    assert found(rows, RowKind.INSTANCE) == [101, 102]
    assert found(rows, RowKind.LABEL) == [100, 103]


def test_rows_behind_the_count_are_not_seen(rows: LiveRows) -> None:
    fewer = LiveRows(store=rows.store, first=FIRST, count=2)
    assert found(fewer) == fewer.alive_rows().tolist() == [100, 101]
    assert found(fewer, RowKind.INSTANCE) == [101]
    assert fewer.with_tombstones([101]).dead_rows == 1


def test_an_old_value_does_not_see_what_is_appended(rows: LiveRows) -> None:
    later = rows.append([row(0, RowKind.LABEL, "later")])
    assert found(later) == [100, 101, 102, 103, 104]
    assert found(rows) == [100, 101, 102, 103]
    assert later.text(104) == "later"


def test_a_store_is_full_at_its_capacity() -> None:
    rows = LiveRows(store=LiveStore(capacity=2, dimension=4), first=FIRST, count=0)
    assert not rows.full
    assert rows.append([row(0, RowKind.LABEL), row(1, RowKind.LABEL)]).full


def test_rows_with_a_tombstone_are_gone_from_the_new_value_only(rows: LiveRows) -> None:
    later = rows.with_tombstones([101])
    assert found(later) == later.alive_rows().tolist() == [100, 102, 103]
    assert found(later, RowKind.INSTANCE) == [102]
    assert found(rows) == rows.alive_rows().tolist() == [100, 101, 102, 103]
    assert (rows.dead_rows, later.dead_rows, later.stored_rows) == (0, 1, 4)
    assert later.with_tombstones([101, 103]).dead_rows == 2


def test_nothing_is_found_where_all_rows_of_a_kind_are_dead(rows: LiveRows) -> None:
    assert found(rows.with_tombstones([101, 102]), RowKind.INSTANCE) == []


def test_a_row_appended_after_a_tombstone_is_alive(rows: LiveRows) -> None:
    later = rows.with_tombstones([103]).append([row(1, RowKind.INSTANCE, "later")])
    assert found(later) == [100, 101, 102, 104]
    assert (later.dead_rows, later.stored_rows) == (1, 5)


def test_a_second_write_at_the_same_place_leaves_nothing_of_the_first(rows: LiveRows) -> None:
    """As after a dropped draft: the value that counts one row appends once more."""
    one = LiveRows(store=rows.store, first=FIRST, count=1)
    again = one.append([row(3, RowKind.LABEL, "again")])
    assert rows.store.texts == ["text 0", "again"]
    assert [votes.tolist() for votes in rows.store.votes] == [[0], [3]]
    assert found(again, RowKind.LABEL) == [100, 101]
    assert np.array_equal(again.vectors(np.array([101])), VECTORS[3:])
