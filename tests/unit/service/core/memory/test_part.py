"""Sparse rows, compared with plain lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.core.memory.part import gather

value_rows = st.lists(st.lists(st.integers(min_value=0, max_value=9), max_size=4), max_size=8)


@given(value_rows, st.data())
def test_gathered_rows_are_the_rows(matrix: list[list[int]], data: st.DataObject) -> None:
    place = st.integers(min_value=0, max_value=len(matrix) - 1)
    places = data.draw(st.lists(place)) if matrix else []
    indptr = np.cumsum([0, *(len(row) for row in matrix)])
    indices = np.array([column for row in matrix for column in row], np.int32)
    columns, counts = gather(indptr, indices, np.array(places, np.int64))
    assert counts.tolist() == [len(matrix[place]) for place in places]
    assert columns.tolist() == [column for place in places for column in matrix[place]]
