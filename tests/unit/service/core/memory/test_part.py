"""Rows are gathered by their places, and a block's place may be written a second time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.core.memory.part import LiveRows, NewRow, entries_of
from service.core.types import RowKind
from tests.support.vectors import unit_rows

FIRST, DIMENSION = 1000, 16
value_rows = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8)


def rows_found(part: LiveRows, kind: RowKind | None = None) -> list[int]:
    _, rows = part.search(np.ones((1, DIMENSION), np.float32), count=9, ef=9, kind=kind)
    return sorted(row for row in rows[0].tolist() if row >= 0)


@given(value_rows, st.data())
def test_gathered_rows_are_the_rows(matrix: list[list[int]], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(matrix) - 1))) if matrix else []
    indptr = np.cumsum([0, *(len(row) for row in matrix)])
    indices = np.array([column for row in matrix for column in row], np.int32)
    entries, counts = entries_of(indptr, np.array(places, np.int64))
    assert counts.tolist() == [len(matrix[place]) for place in places]
    assert indices[entries].tolist() == [column for place in places for column in matrix[place]]


def test_a_second_write_at_the_same_place_leaves_nothing_of_the_first() -> None:
    """This happens after a dropped draft: the block with one row appends to it a second time."""
    vectors, votes = unit_rows(4, DIMENSION), np.array([7, 9], np.int32)
    instances = [
        NewRow(
            kind=RowKind.INSTANCE,
            text="dropped",
            votes=votes[:1],
            vector=vector,
            weights=np.array([0.5], np.float32),
        )
        for vector in vectors[:3]
    ]
    written = NewRow(kind=RowKind.LABEL, text="again", votes=votes, vector=vectors[3])
    empty = LiveRows.block(first=FIRST, capacity=9, dimension=DIMENSION)
    one = empty.append(instances[:1])
    dropped = one.append(instances[1:])
    again = one.append([written])
    assert rows_found(again) == [FIRST, FIRST + 1]
    assert rows_found(again, RowKind.LABEL) == [FIRST + 1]
    number = np.array([FIRST + 1])
    assert again.texts(number) == ["again"]
    assert again.votes(number)[0].tolist() == votes.tolist()
    assert again.votes(number).weights.tolist() == [1.0] * len(votes)
    assert np.array_equal(again.vectors(number), [written.vector])
    assert dropped.stored_bytes > again.stored_bytes > one.stored_bytes
