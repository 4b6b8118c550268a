"""Keys in parts are read and found as if they were not divided."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from service.core.index.exact import exact_search
from service.core.index.key_parts import KeyPart, KeyShare, PartedKeys, PartedSegment, parts_of
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import RowFilter
from tests.support.vectors import DIMENSION, QUERIES, bitmap, built, slow_search, unit_rows

ROWS, COUNT = 400, 3
KEYS = unit_rows(ROWS)
PARAMETERS = IndexParameters(m=8, ef_construction=40)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[KeyPart]:
    folder = tmp_path_factory.mktemp("parts")
    return [
        part_over(np.flatnonzero(parts_of(KEYS, COUNT) == index), folder / str(index))
        for index in range(COUNT)
    ]


def part_over(rows: np.ndarray, path: Path) -> KeyPart:
    return KeyPart(rows=rows, keys=KEYS[rows], segment=built(KEYS[rows], path, PARAMETERS))


def segment_of(parts: list[KeyPart]) -> PartedSegment:
    return PartedSegment(
        [(part.rows, part.segment) for part in parts], rows=ROWS, dimension=DIMENSION
    )


def test_each_row_is_in_one_part_and_stays_there() -> None:
    shares = [KeyShare(index=index, count=COUNT).holds(KEYS) for index in range(COUNT)]
    assert (np.sum(shares, axis=0) == 1).all()
    assert all(90 < share.sum() < 180 for share in shares)
    assert np.array_equal(KeyShare(index=1, count=COUNT).holds(KEYS[:50]), shares[1][:50])


def test_keys_are_read_like_an_array(parts: list[KeyPart]) -> None:
    keys = PartedKeys(parts, rows=ROWS, dimension=DIMENSION)
    assert len(keys) == ROWS and keys.shape == KEYS.shape
    for rows in (slice(None), slice(5, 90, 4), slice(-3, None), np.array([399, 0, 7, 7]), []):
        rows = rows if isinstance(rows, slice) else np.array(rows, np.int64)
        assert np.array_equal(keys[rows], KEYS[rows])


def test_keys_of_a_part_that_is_not_held_are_not_read(parts: list[KeyPart]) -> None:
    keys = PartedKeys(parts[:1], rows=ROWS, dimension=DIMENSION)
    assert np.array_equal(keys[parts[0].rows], parts[0].keys)
    with pytest.raises(IndexError, match=r"1 of 2 rows are in parts that are not held"):
        keys[np.array([parts[0].rows[0], parts[1].rows[0]])]
    with pytest.raises(IndexError):
        PartedKeys([], rows=ROWS, dimension=DIMENSION)[:1]
    with pytest.raises(IndexError):
        segment_of(parts[:1]).vectors(parts[1].rows[:1])


FILTERS = (
    RowFilter(start=0, stop=ROWS),
    RowFilter(start=0, stop=130),
    RowFilter(start=130, stop=ROWS, alive=bitmap(ROWS, range(0, ROWS, 3))),
    RowFilter(start=0, stop=ROWS, alive=bitmap(ROWS, range(1, ROWS))),
    RowFilter(start=20, stop=20),
    None,
)


@pytest.mark.parametrize("held", [[0, 1, 2], [1], []])
def test_the_nearest_rows_of_the_held_parts_are_found(
    parts: list[KeyPart], held: list[int]
) -> None:
    own = np.isin(np.arange(ROWS), np.concatenate([[-1], *(parts[index].rows for index in held)]))
    segment = segment_of([parts[index] for index in held])
    assert segment.rows == ROWS
    for row_filter, count in product(FILTERS, (1, 12)):
        allowed = own if row_filter is None else own & row_filter.allows(np.arange(ROWS))
        for _ in range(2):  # the second search finds the filters of parts in the cache
            similarities, rows = segment.search(QUERIES, count=count, ef=300, row_filter=row_filter)
            expected = slow_search(KEYS, allowed=np.flatnonzero(allowed).tolist(), count=count)
            assert rows.tolist() == expected
            assert (similarities[rows < 0] == -np.inf).all()


def test_a_search_of_keys_in_parts_is_exact(parts: list[KeyPart]) -> None:
    keys = PartedKeys(parts, rows=ROWS, dimension=DIMENSION)
    for row_filter in FILTERS[:4]:
        assert row_filter is not None
        ours, theirs = (
            exact_search(of, QUERIES, count=9, row_filter=row_filter) for of in (keys, KEYS)
        )
        assert all(map(np.array_equal, ours, theirs))


def test_vectors_are_those_of_the_keys(parts: list[KeyPart]) -> None:
    rows = np.array([5, 399, 5, 0, 64])
    assert np.array_equal(segment_of(parts).vectors(rows), KEYS[rows])


def test_rows_of_one_key_keep_to_their_share(tmp_path: Path) -> None:
    keys = np.concatenate([KEYS[:1].repeat(20, axis=0), KEYS[1:60]])
    rows = [np.flatnonzero(parts_of(keys, 2) == index) for index in range(2)]
    parts = [
        (own, built(keys[own], tmp_path / str(place), PARAMETERS)) for place, own in enumerate(rows)
    ]
    segment = PartedSegment(parts, rows=len(keys), dimension=DIMENSION)
    query = KEYS[:1].astype(np.float32)
    [found] = segment.search(query, count=10, ef=80, row_filter=None, share=3)[1]
    assert sum(found < 20) == 3
