"""A sealed part equals the live parts that it was made of: contents, searches, tombstones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Segment
from service.core.memory.compaction import SegmentPlan
from service.core.memory.live_rows import LiveRows, LiveStore, NewRow
from service.core.memory.part import Part, joined_weights
from service.core.memory.sealed_rows import SealedRows, seal
from service.core.types import RowKind, Rows

FIRST, BLOCK, DIMENSION = 1000, 40, 16
EF = 200  # more than the number of rows, so the graph finds all
KINDS = (None, *RowKind)


def block(first: int, seed: int) -> LiveRows:
    """A full block: rows of both kinds with zero to three votes, a fifth of them dead.

    The votes of some rows have weights.
    """
    drawn = np.random.default_rng(seed)
    vectors = drawn.standard_normal((BLOCK, DIMENSION))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = [
        NewRow(
            kind=RowKind.INSTANCE if place % 3 else RowKind.LABEL,
            text=f"text {first + place}",
            votes=drawn.integers(0, 50, place % 4).astype(np.int32),
            vector=vectors[place].astype(np.float16),
            weights=None if place % 5 else drawn.random(place % 4).astype(np.float32),
        )
        for place in range(BLOCK)
    ]
    store = LiveStore(capacity=BLOCK, dimension=DIMENSION)
    full = LiveRows(store=store, first=first, count=0).append(rows)
    return full.with_tombstones((first + drawn.choice(BLOCK, BLOCK // 5, replace=False)).tolist())


@pytest.fixture
def live() -> list[Part]:
    return [block(FIRST, 1), block(FIRST + BLOCK, 2)]


@pytest.fixture
def build(tmp_path: Path) -> Callable[[list[Part], Rows], Segment]:
    """`build(parts, rows)` builds the segment of some rows of parts."""

    def built(parts: list[Part], rows: Rows) -> Segment:
        vectors = np.concatenate([part.vectors(within(part, rows)) for part in parts])
        path = tmp_path / f"{rows[0]}-{len(rows)}.index"
        library = load_library("faiss")
        library.build(vectors, IndexParameters(m=16, ef_construction=EF), path, lambda rows: None)
        return library.open(path, rows=len(rows), dimension=DIMENSION)

    return built


@pytest.fixture
def sealed(live: list[Part], build: Callable[..., Segment]) -> SealedRows:
    """Both blocks in one."""
    plan = planned(live)
    return seal(plan, live, build(live, plan.rows), dimension=DIMENSION)


def within(part: Part, rows: Rows) -> Rows:
    return rows[(rows >= part.first) & (rows < part.stop)]


def alive_rows(parts: list[Part]) -> Rows:
    return np.concatenate([part.alive_rows() for part in parts])


def planned(parts: list[Part]) -> SegmentPlan:
    return SegmentPlan(first=parts[0].first, stop=parts[-1].stop, level=0, rows=alive_rows(parts))


def found(parts: list[Part], queries: np.ndarray, count: int, kind: RowKind | None) -> list:
    """Rows and similarities of each query in several parts, the nearest first."""
    searched = [part.search(queries, count=count, ef=EF, kind=kind) for part in parts]
    similarities = np.hstack([one[0] for one in searched])
    rows = np.hstack([one[1] for one in searched])
    lines = []
    for line, scores in zip(rows, similarities, strict=True):
        pairs = [pair for pair in zip(-scores, line, strict=True) if pair[1] >= 0]
        lines.append([(int(row), round(-float(score), 4)) for score, row in sorted(pairs)[:count]])
    return lines


def assert_equal(one: list[Part], other: list[Part]) -> None:
    """Both have the same alive rows with the same contents, and find them alike."""
    rows = alive_rows(one)
    assert alive_rows(other).tolist() == rows.tolist()
    for mine, yours in zip(contents(one, rows), contents(other, rows), strict=True):
        assert np.array_equal(mine, yours)
    drawn = np.random.default_rng(3).standard_normal((8, DIMENSION))
    queries = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    for kind in KINDS:
        for count in (1, 7, 3 * BLOCK):
            assert found(one, queries, count, kind) == found(other, queries, count, kind)


def contents(parts: list[Part], rows: Rows) -> list[np.ndarray]:
    pieces = [(part, within(part, rows)) for part in parts]
    pieces = [(part, rows_of_part) for part, rows_of_part in pieces if len(rows_of_part)]
    return [
        np.concatenate([part.is_instance(rows_of_part) for part, rows_of_part in pieces]),
        np.concatenate([part.votes(rows_of_part)[0] for part, rows_of_part in pieces]),
        np.concatenate([part.votes(rows_of_part)[1] for part, rows_of_part in pieces]),
        _weights(pieces),
        np.concatenate([part.vectors(rows_of_part) for part, rows_of_part in pieces]),
        np.array([part.text(row) for part, piece in pieces for row in piece.tolist()]),
    ]


def _weights(pieces: list[tuple[Part, Rows]]) -> np.ndarray:
    weights = joined_weights(
        [(part.vote_weights(rows), len(part.votes(rows)[0])) for part, rows in pieces]
    )
    assert weights is not None
    return weights


def test_a_sealed_part_equals_the_live_parts_that_it_came_from(
    live: list[Part], sealed: SealedRows
) -> None:
    assert (sealed.first, sealed.stop) == (FIRST, FIRST + 2 * BLOCK)
    assert (sealed.stored_rows, sealed.dead_rows) == (2 * BLOCK * 4 // 5, 0)
    assert_equal(live, [sealed])


def test_rows_can_be_read_in_any_order(live: list[Part], sealed: SealedRows) -> None:
    rows = live[0].alive_rows()[[5, 1, 9, 1]]
    assert sealed.is_instance(rows).tolist() == live[0].is_instance(rows).tolist()
    for mine, yours in zip(sealed.votes(rows), live[0].votes(rows), strict=True):
        assert mine.tolist() == yours.tolist()
    assert np.array_equal(sealed.vote_weights(rows), live[0].vote_weights(rows))
    assert sealed.stored_bytes < live[0].stored_bytes + live[1].stored_bytes  # no dead rows
    assert np.array_equal(sealed.vectors(rows), live[0].vectors(rows))


def test_rows_with_a_tombstone_are_not_found_and_the_old_value_keeps_them(
    live: list[Part], sealed: SealedRows
) -> None:
    rows = sealed.alive_rows()
    dead = rows[::3].tolist()
    later = sealed.with_tombstones(dead)
    assert (later.dead_rows, sealed.dead_rows) == (len(dead), 0)
    assert sealed.alive_rows().tolist() == rows.tolist()
    assert_equal(
        [later], [part.with_tombstones(within(part, np.array(dead)).tolist()) for part in live]
    )
    assert_equal([sealed], live)
    assert later.with_tombstones(dead[:2]).dead_rows == len(dead)


def test_rows_deleted_between_plan_and_seal_are_dead(
    live: list[Part], build: Callable[..., Segment]
) -> None:
    plan = planned(live)
    segment = build(live, plan.rows)
    dying = plan.rows[[0, 7, len(plan.rows) - 1]]
    later = [part.with_tombstones(within(part, dying).tolist()) for part in live]
    sealed = seal(plan, later, segment, dimension=DIMENSION)
    assert (sealed.stored_rows, sealed.dead_rows) == (len(plan.rows), 3)
    assert_equal([sealed], later)


def test_sealed_parts_are_sealed_again_in_one(
    live: list[Part], sealed: SealedRows, build: Callable[..., Segment]
) -> None:
    """A sealed part and a live block, both with dead rows, are sealed together."""
    first = planned(live[:1])
    half: Part = seal(first, live[:1], build(live[:1], first.rows), dimension=DIMENSION)
    half = half.with_tombstones(half.alive_rows()[:4].tolist())
    parts = [half, live[1]]
    whole = planned(parts)
    again = seal(whole, parts, build(parts, whole.rows), dimension=DIMENSION)
    assert again.stored_rows == sealed.stored_rows - 4
    assert_equal([again], parts)


def test_a_plan_without_rows_becomes_an_empty_part(live: list[Part]) -> None:
    empty = SegmentPlan(first=FIRST, stop=FIRST + BLOCK, level=0, rows=np.zeros(0, np.int64))
    sealed = seal(empty, live[:1], None, dimension=DIMENSION)
    assert (sealed.first, sealed.stop, sealed.stored_rows, sealed.dead_rows) == (
        FIRST,
        FIRST + BLOCK,
        0,
        0,
    )
    assert sealed.alive_rows().tolist() == []
    queries = np.ones((3, DIMENSION), np.float32)
    for kind in KINDS:
        similarities, rows = sealed.search(queries, count=5, ef=EF, kind=kind)
        assert similarities.shape == rows.shape == (3, 0)
    assert sealed.with_tombstones([]).dead_rows == 0
    with pytest.raises(ValueError, match="no vectors"):
        sealed.vectors(empty.rows)


def test_a_plan_with_rows_outside_its_parts_is_refused(
    live: list[Part], build: Callable[..., Segment]
) -> None:
    plan = planned(live)
    with pytest.raises(ValueError, match="do not hold all rows"):
        seal(plan, live[:1], build(live, plan.rows), dimension=DIMENSION)
