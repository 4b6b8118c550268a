"""A sealed part equals the live parts that it was made of, and old parts never change."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Segment
from service.core.memory.compaction import SegmentPlan
from service.core.memory.part import LiveRows, NewRow, RowPart, gather, joined_weights, seal
from service.core.types import RowKind, Rows
from tests.support.vectors import built, units

FIRST, BLOCK, DIMENSION = 1000, 40, 16
EF = 200  # more than the number of rows, so the graph finds all
KINDS = (None, *RowKind)
QUERIES = units(8, DIMENSION, seed=3)
Build = Callable[[list[RowPart], Rows], Segment]
value_rows = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8)


def new_row(place: int, *, text: str = "") -> NewRow:
    """An instance row, or at every third place a label row, with zero to three votes.

    Some rows have weights for their votes.
    """
    drawn = np.random.default_rng(place)
    return NewRow(
        kind=RowKind.INSTANCE if place % 3 else RowKind.LABEL,
        text=text or f"text {place}",
        votes=drawn.integers(0, 50, place % 4).astype(np.int32),
        vector=units(1, DIMENSION, seed=place)[0].astype(np.float16),
        weights=None if place % 5 else drawn.random(place % 4).astype(np.float32),
    )


def block(first: int, rows: int = BLOCK, *, capacity: int = BLOCK) -> LiveRows:
    empty = LiveRows.block(first=first, capacity=capacity, dimension=DIMENSION)
    return empty.append([new_row(first + place) for place in range(rows)])


@pytest.fixture
def live() -> list[RowPart]:
    """Two full blocks; a fifth of their rows are dead."""
    blocks = [block(FIRST), block(FIRST + BLOCK)]
    drawn = np.random.default_rng(0)
    dead = [part.first + drawn.choice(BLOCK, BLOCK // 5, replace=False) for part in blocks]
    return [part.with_tombstones(np.concatenate(dead).tolist()) for part in blocks]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build(parts, rows)` builds a segment over those rows of the parts."""

    def of_rows(parts: list[RowPart], rows: Rows) -> Segment:
        vectors = np.concatenate([part.vectors(within(part, rows)) for part in parts])
        path = tmp_path / f"{rows[0]}-{len(rows)}.index"
        return built(vectors, path, IndexParameters(m=16, ef_construction=EF))

    return of_rows


@pytest.fixture
def sealed(live: list[RowPart], build: Build) -> RowPart:
    """A sealed part made of both live blocks."""
    plan = planned(live)
    return seal(plan, live, build(live, plan.rows), dimension=DIMENSION)


def within(part: RowPart, rows: Rows) -> Rows:
    return rows[(rows >= part.first) & (rows < part.stop)]


def alive_rows(parts: list[RowPart]) -> Rows:
    return np.concatenate([part.alive_rows() for part in parts])


def planned(parts: list[RowPart]) -> SegmentPlan:
    return SegmentPlan(first=parts[0].first, stop=parts[-1].stop, level=0, rows=alive_rows(parts))


def found(parts: list[RowPart], queries: np.ndarray, count: int, kind: RowKind | None) -> list:
    """Search several parts; return each query's rows and similarities, the nearest first."""
    searched = [part.search(queries, count=count, ef=EF, kind=kind) for part in parts]
    similarities = np.hstack([one[0] for one in searched])
    rows = np.hstack([one[1] for one in searched])
    lines = []
    for line, scores in zip(rows, similarities, strict=True):
        pairs = [pair for pair in zip(-scores, line, strict=True) if pair[1] >= 0]
        lines.append([(int(row), round(-float(score), 4)) for score, row in sorted(pairs)[:count]])
    return lines


def rows_found(part: RowPart, kind: RowKind | None = None) -> list[int]:
    [line] = found([part], units(1, DIMENSION, seed=3), 3 * BLOCK, kind)
    return sorted(row for row, _ in line)


def assert_equal(one: list[RowPart], other: list[RowPart]) -> None:
    """Check that both have the same alive rows with the same contents, and find the same rows."""
    rows = alive_rows(one)
    assert alive_rows(other).tolist() == rows.tolist()
    for mine, yours in zip(contents(one, rows), contents(other, rows), strict=True):
        assert np.array_equal(mine, yours)
    for kind in KINDS:
        for count in (1, 7, 3 * BLOCK):
            assert found(one, QUERIES, count, kind) == found(other, QUERIES, count, kind)


def contents(parts: list[RowPart], rows: Rows) -> list[np.ndarray]:
    pieces = [(part, within(part, rows)) for part in parts]
    pieces = [(part, rows_of_part) for part, rows_of_part in pieces if len(rows_of_part)]
    weights = joined_weights(
        [(part.vote_weights(rows), len(part.votes(rows)[0])) for part, rows in pieces]
    )
    assert weights is not None
    return [
        np.concatenate([part.is_instance(rows) for part, rows in pieces]),
        np.concatenate([part.votes(rows)[0] for part, rows in pieces]),
        np.concatenate([part.votes(rows)[1] for part, rows in pieces]),
        weights,
        np.concatenate([part.vectors(rows) for part, rows in pieces]),
        np.concatenate([part.texts(rows) for part, rows in pieces]),
    ]


@given(value_rows, st.data())
def test_gathered_rows_are_the_rows(matrix: list[list[int]], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(matrix) - 1))) if matrix else []
    indptr = np.cumsum([0, *(len(row) for row in matrix)])
    indices = np.array([column for row in matrix for column in row], np.int32)
    columns, counts = gather(indptr, indices, np.array(places, np.int64))
    assert counts.tolist() == [len(matrix[place]) for place in places]
    assert columns.tolist() == [column for place in places for column in matrix[place]]


# Live and sealed parts -----------------------------------------------------------------------


def test_rows_can_be_read_in_any_order(live: list[RowPart], sealed: RowPart) -> None:
    rows = live[0].alive_rows()[[5, 1, 9, 1]]
    written = [new_row(int(row)) for row in rows]
    weights = joined_weights([(row.weights, len(row.votes)) for row in written])
    for part in (live[0], sealed):
        kinds = [row.kind is RowKind.INSTANCE for row in written]
        assert part.is_instance(rows).tolist() == kinds
        columns, counts = part.votes(rows)
        assert columns.tolist() == np.concatenate([row.votes for row in written]).tolist()
        assert counts.tolist() == [len(row.votes) for row in written]
        assert np.array_equal(part.vote_weights(rows), weights)
        assert part.texts(rows) == [row.text for row in written]
        assert np.array_equal(part.vectors(rows), [row.vector for row in written])


# Live parts ----------------------------------------------------------------------------------


def test_a_second_write_at_the_same_place_leaves_nothing_of_the_first() -> None:
    """This happens after a dropped draft: the block with one row appends to it a second time."""
    one = block(FIRST, 1)
    dropped = one.append([new_row(5), new_row(3)])
    again = one.append([new_row(6, text="again")])
    assert rows_found(again) == [FIRST, FIRST + 1]
    assert rows_found(again, RowKind.LABEL) == [FIRST + 1]
    number = np.array([FIRST + 1])
    assert again.texts(number) == ["again"]
    assert again.votes(number)[0].tolist() == new_row(6).votes.tolist()
    assert again.vote_weights(number) is None
    assert np.array_equal(again.vectors(number), [new_row(6).vector])
    assert dropped.stored_bytes > again.stored_bytes > one.stored_bytes


# Sealing -------------------------------------------------------------------------------------


def test_a_sealed_part_equals_the_live_parts_that_it_came_from(
    live: list[RowPart], sealed: RowPart
) -> None:
    assert (sealed.first, sealed.stop) == (FIRST, FIRST + 2 * BLOCK)
    assert (sealed.stored_rows, sealed.dead_rows) == (2 * BLOCK * 4 // 5, 0)
    assert sealed.stored_bytes < live[0].stored_bytes + live[1].stored_bytes  # stores no dead rows
    assert_equal(live, [sealed])
    dead = sealed.alive_rows()[::3].tolist()
    assert_equal([sealed.with_tombstones(dead)], [part.with_tombstones(dead) for part in live])


def test_sealed_parts_are_sealed_again_in_one(
    live: list[RowPart], sealed: RowPart, build: Build
) -> None:
    """A sealed part and a live block are sealed together, both with dead rows and some that die."""
    first = planned(live[:1])
    half: RowPart = seal(first, live[:1], build(live[:1], first.rows), dimension=DIMENSION)
    half = half.with_tombstones(half.alive_rows()[:4].tolist())
    parts = [half, live[1]]
    whole = planned(parts)
    segment = build(parts, whole.rows)
    dying = whole.rows[[0, 7, len(whole.rows) - 1]].tolist()
    parts = [part.with_tombstones(dying) for part in parts]
    again = seal(whole, parts, segment, dimension=DIMENSION)
    assert (again.stored_rows, again.dead_rows) == (sealed.stored_rows - 4, 3)
    assert again.stored_bytes < sealed.stored_bytes
    assert_equal([again], parts)


def test_a_plan_with_rows_outside_its_parts_is_refused(live: list[RowPart], build: Build) -> None:
    plan = planned(live)
    with pytest.raises(ValueError, match="do not hold all rows"):
        seal(plan, live[:1], build(live, plan.rows), dimension=DIMENSION)
