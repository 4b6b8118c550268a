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
value_rows = st.lists(st.lists(st.integers(min_value=0, max_value=9), max_size=4), max_size=8)


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


@pytest.fixture(params=["live", "sealed"])
def parts(request: pytest.FixtureRequest, live: list[RowPart], sealed: RowPart) -> list[RowPart]:
    return live if request.param == "live" else [sealed]


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
    place = st.integers(min_value=0, max_value=len(matrix) - 1)
    places = data.draw(st.lists(place)) if matrix else []
    indptr = np.cumsum([0, *(len(row) for row in matrix)])
    indices = np.array([column for row in matrix for column in row], np.int32)
    columns, counts = gather(indptr, indices, np.array(places, np.int64))
    assert counts.tolist() == [len(matrix[place]) for place in places]
    assert columns.tolist() == [column for place in places for column in matrix[place]]


# Live and sealed parts -----------------------------------------------------------------------


def test_rows_can_be_read_in_any_order(parts: list[RowPart]) -> None:
    part = parts[0]
    rows = part.alive_rows()[[5, 1, 9, 1]]
    written = [new_row(int(row)) for row in rows]
    kinds = [row.kind is RowKind.INSTANCE for row in written]
    assert part.is_instance(rows).tolist() == kinds
    columns, counts = part.votes(rows)
    assert columns.tolist() == np.concatenate([row.votes for row in written]).tolist()
    assert counts.tolist() == [len(row.votes) for row in written]
    expected = joined_weights([(row.weights, len(row.votes)) for row in written])
    assert np.array_equal(part.vote_weights(rows), expected)
    assert part.texts(rows) == [row.text for row in written]
    assert np.array_equal(part.vectors(rows), [row.vector for row in written])


def test_a_search_finds_alive_rows_of_a_kind_by_their_numbers(parts: list[RowPart]) -> None:
    for part in parts:
        rows = part.alive_rows()
        assert rows_found(part) == rows.tolist()
        for kind in RowKind:
            of_kind = part.is_instance(rows) == (kind is RowKind.INSTANCE)
            assert rows_found(part, kind) == rows[of_kind].tolist()
        query = part.vectors(rows[7:8]).astype(np.float32)
        similarities, numbers = part.search(query, count=1, ef=EF)
        assert numbers.tolist() == [[rows[7]]]
        assert similarities == pytest.approx(1.0, abs=1e-3)


def test_rows_with_a_tombstone_are_gone_from_the_new_value_only(parts: list[RowPart]) -> None:
    part = parts[0]
    rows, before = part.alive_rows(), part.dead_rows
    dead = rows[::3].tolist()
    later = part.with_tombstones(dead)
    assert rows_found(later) == later.alive_rows().tolist() == sorted(set(rows) - set(dead))
    assert rows_found(part) == part.alive_rows().tolist() == rows.tolist()
    assert (part.dead_rows, later.dead_rows) == (before, before + len(dead))
    assert later.stored_rows == part.stored_rows
    assert later.with_tombstones(dead[:2]).dead_rows == later.dead_rows
    assert part.with_tombstones([FIRST - 1, part.stop]) is part
    instances = rows[part.is_instance(rows)]
    assert rows_found(part.with_tombstones(instances.tolist()), RowKind.INSTANCE) == []


# Live parts ----------------------------------------------------------------------------------


def test_an_old_value_does_not_see_what_is_appended() -> None:
    rows = block(FIRST, 2)
    assert (rows.first, rows.stop, rows.stored_rows, rows.room) == (FIRST, FIRST + 2, 2, BLOCK - 2)
    later = rows.with_tombstones([FIRST + 1]).append([new_row(7, text="later")])
    assert rows_found(later) == [FIRST, FIRST + 2]
    assert rows_found(rows) == [FIRST, FIRST + 1]
    assert later.texts(np.array([FIRST + 2])) == ["later"]
    assert (later.dead_rows, later.stored_rows) == (1, 3)
    assert block(FIRST, 2, capacity=2).room == 0


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


def test_rows_deleted_between_plan_and_seal_are_dead(live: list[RowPart], build: Build) -> None:
    plan = planned(live)
    segment = build(live, plan.rows)
    dying = plan.rows[[0, 7, len(plan.rows) - 1]].tolist()
    later = [part.with_tombstones(dying) for part in live]
    sealed = seal(plan, later, segment, dimension=DIMENSION)
    assert (sealed.stored_rows, sealed.dead_rows) == (len(plan.rows), 3)
    assert_equal([sealed], later)


def test_sealed_parts_are_sealed_again_in_one(
    live: list[RowPart], sealed: RowPart, build: Build
) -> None:
    """A sealed part and a live block, both with dead rows, are sealed together."""
    first = planned(live[:1])
    half: RowPart = seal(first, live[:1], build(live[:1], first.rows), dimension=DIMENSION)
    half = half.with_tombstones(half.alive_rows()[:4].tolist())
    parts = [half, live[1]]
    whole = planned(parts)
    again = seal(whole, parts, build(parts, whole.rows), dimension=DIMENSION)
    assert again.stored_rows == sealed.stored_rows - 4
    assert again.stored_bytes < sealed.stored_bytes
    assert_equal([again], parts)


def test_a_plan_without_rows_becomes_an_empty_part(live: list[RowPart]) -> None:
    empty = SegmentPlan(first=FIRST, stop=FIRST + BLOCK, level=0, rows=np.zeros(0, np.int64))
    sealed = seal(empty, live[:1], None, dimension=DIMENSION)
    assert (sealed.first, sealed.stop) == (FIRST, FIRST + BLOCK)
    assert (sealed.stored_rows, sealed.dead_rows, sealed.stored_bytes) == (0, 0, 0)
    assert sealed.alive_rows().tolist() == []
    for kind in KINDS:
        similarities, rows = sealed.search(QUERIES, count=5, ef=EF, kind=kind)
        assert similarities.shape == rows.shape == (8, 0)
    with pytest.raises(ValueError, match="no vectors"):
        sealed.vectors(empty.rows)


def test_a_plan_with_rows_outside_its_parts_is_refused(live: list[RowPart], build: Build) -> None:
    plan = planned(live)
    with pytest.raises(ValueError, match="do not hold all rows"):
        seal(plan, live[:1], build(live, plan.rows), dimension=DIMENSION)
