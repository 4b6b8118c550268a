"""Searches with filters that correlate with the query, or with shared keys, equal a full scan."""

from pathlib import Path

import numpy as np
import pytest

from service.core.errors import BundleAltered
from service.core.index.choose_ef import recall_per_query
from service.core.index.exact import exact_search
from service.core.index.frozen_segment import FrozenSegment, open_segment
from service.core.index.libraries import IndexParameters
from service.core.index.parts import FIRST_ROWS, Part
from service.core.index.protocol import RowFilter, Segment, Tombstones
from tests.support.vectors import bitmap, built, units

ROWS, DIMENSION, COUNT, EF = 24_000, 16, 40, 160
PARAMETERS = IndexParameters(m=16, ef_construction=120, ef=EF)


def unit(rows: int, seed: int) -> np.ndarray:
    return units(rows, DIMENSION, seed=seed)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return unit(ROWS, 0).astype(np.float16)


@pytest.fixture(scope="module")
def segment(vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> FrozenSegment:
    return built(vectors, tmp_path_factory.mktemp("segment") / "base.index", PARAMETERS)


def without(dead: np.ndarray, rows: int) -> RowFilter:
    return RowFilter(start=0, stop=rows, alive=bitmap(rows, dead.tolist()))


def nearest_but(nearest: np.ndarray, kept_every: int | None) -> np.ndarray:
    """Return `nearest` without the first, and every `kept_every`th after it, if that is set."""
    return nearest if kept_every is None else np.delete(nearest, np.s_[::kept_every])


def recall(
    segment: Segment,
    vectors: np.ndarray,
    queries: np.ndarray,
    row_filter: RowFilter | None,
    ef: int = EF,
) -> float:
    everything = row_filter or RowFilter(start=0, stop=len(vectors))
    exact = exact_search(vectors, queries, count=COUNT, row_filter=everything)
    _, found = segment.search(queries, count=COUNT, ef=ef, row_filter=row_filter)
    shares = recall_per_query(
        queries=queries, retrieved=found, exact=exact, vectors_of=vectors.__getitem__
    )
    return float(shares.mean())


@pytest.mark.parametrize("kept_every", [None, 20, 5])
@pytest.mark.parametrize("deleted", [30, 300, 3_000, 12_000])
def test_what_lies_behind_a_deleted_region_is_found(
    segment: FrozenSegment, vectors: np.ndarray, deleted: int, kept_every: int | None
) -> None:
    """A walk whose queue holds fewer nodes than the region would end inside it.

    Of the region, no row remains, or one in every `kept_every`.
    """
    query = unit(1, 1)
    order = np.argsort(-(vectors.astype(np.float32) @ query[0]))
    row_filter = without(nearest_but(order[:deleted], kept_every), ROWS)
    near = vectors[order[[0, deleted // 2, deleted]]].astype(np.float32)
    for queries in (query, near, unit(20, 2)):
        assert recall(segment, vectors, queries, row_filter) >= 0.99


@pytest.mark.parametrize(
    ("share", "ef"), [(0.001, EF), (0.02, EF), (0.1, 80), (0.3, 80), (0.3, EF), (0.9999, EF)]
)
def test_no_alive_row_is_lost_among_dead_ones(
    segment: FrozenSegment, vectors: np.ndarray, share: float, ef: int
) -> None:
    """The cases need a walk, a longer walk, or a scan."""
    dead = np.flatnonzero(np.random.default_rng(13).random(ROWS) < share)
    queries, row_filter = unit(6, 14), without(dead, ROWS)
    assert recall(segment, vectors, queries, row_filter, ef) >= 0.97
    _, rows = segment.search(queries, count=COUNT, ef=ef, row_filter=row_filter)
    assert not np.isin(rows, dead).any()
    assert ((rows >= 0).sum(axis=1) == min(COUNT, ROWS - len(dead))).all()


def test_a_filter_that_lies_across_the_query_is_filled(
    segment: FrozenSegment, vectors: np.ndarray
) -> None:
    """Only rows on the side away from the query pass the filter: half of all, and none near it."""
    query = unit(1, 3)
    far = np.flatnonzero(vectors.astype(np.float32) @ query[0] > 0)
    assert recall(segment, vectors, query, without(far, ROWS)) >= 0.99


class RecordedGraph:
    """A graph that records the queue length of each walk, and 0 for a scan."""

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors, self.queues, self.copied = vectors.astype(np.float32), [], []

    def walk(self, queries: np.ndarray, *, count: int, queue: int) -> tuple[np.ndarray, np.ndarray]:
        self.queues.append(queue)
        similarities = queries @ self._vectors.T
        nodes = np.argsort(-similarities, axis=1)[:, :count]
        return np.take_along_axis(similarities, nodes, 1), nodes

    def subset(self, nodes: np.ndarray, *, copied: bool) -> "RecordedSubset":
        self.copied.append(copied)
        return RecordedSubset(self, nodes, is_copy=copied)


class RecordedSubset:
    def __init__(self, graph: RecordedGraph, nodes: np.ndarray, *, is_copy: bool) -> None:
        self._graph, self.nodes, self.is_copy = graph, nodes, is_copy

    def search(self, queries: np.ndarray, *, count: int) -> tuple[np.ndarray, np.ndarray]:
        self._graph.queues.append(0)
        found = np.tile(self.nodes[:count], (len(queries), 1))
        return np.zeros(found.shape, np.float32), found


def expected_walk(count: int, queue: int, share: float) -> int:
    wanted = count + (queue - count) * share**0.4
    return int((wanted + 3 * (wanted * (1 - share)) ** 0.5) / share) + 8


@pytest.mark.parametrize(
    ("near", "kept_every", "count", "ef", "shares"),
    [
        pytest.param(0, None, COUNT, EF, [], id="one walk"),
        pytest.param(1_000, 5, 8, 8, [4 / 18], id="a longer walk"),
        pytest.param(1_000, 60, 8, 8, [1 / 18, None], id="a longer walk and a scan"),
        pytest.param(200, 5, 8, 8, [4 / 16], id="a longer walk, out of a small region"),
        pytest.param(60, None, 8, 8, [None], id="a scan, because none passes"),
        pytest.param(3_000, None, COUNT, EF, [None], id="a scan, and a longer queue"),
    ],
)
def test_a_walk_is_as_long_as_the_share_that_passed_in_the_last_one_requires(
    vectors: np.ndarray,
    near: int,
    kept_every: int | None,
    count: int,
    ef: int,
    shares: list[float | None],
) -> None:
    """`shares` are those in the walks that were too short; None stands for a scan."""
    graph, query = RecordedGraph(vectors), unit(1, 5)
    order = np.argsort(-(vectors.astype(np.float32) @ query[0]))
    others = np.random.default_rng(4).choice(order[near:], 100, replace=False)
    dead = np.append(nearest_but(order[:near], kept_every), others)
    segment = FrozenSegment(graph, rows=ROWS)
    _, rows = segment.search(query, count=count, ef=ef, row_filter=without(dead, ROWS))
    assert not np.isin(rows, dead).any()
    assert (rows >= 0).all()
    first = expected_walk(count, ef, 1 - len(dead) / ROWS)
    later = [0 if share is None else expected_walk(count, ef, share) for share in shares]
    assert graph.queues == [first, *later]


def test_few_rows_that_pass_are_scanned_at_once(vectors: np.ndarray) -> None:
    graph = RecordedGraph(vectors)
    segment, few = FrozenSegment(graph, rows=ROWS), without(np.arange(14_000), ROWS)
    segment.search(unit(1, 5), count=COUNT, ef=EF, row_filter=few)
    assert graph.queues == [0]


def test_each_query_is_walked_for_as_long_as_it_needs(vectors: np.ndarray) -> None:
    """The filter excludes what is near the first of two queries."""
    graph, queries = RecordedGraph(vectors), np.concatenate([unit(1, 5), -unit(1, 5)])
    dead = np.argsort(-(vectors.astype(np.float32) @ queries[0]))[:1_000]
    segment = FrozenSegment(graph, rows=ROWS)
    segment.search(queries, count=COUNT, ef=EF, row_filter=without(dead, ROWS))
    first = expected_walk(COUNT, EF, 1 - 1_000 / ROWS)
    assert graph.queues == [first, 0, first]


def test_a_filter_is_copied_from_its_second_scan_on(vectors: np.ndarray) -> None:
    graph, query = RecordedGraph(vectors), unit(1, 5)
    segment, few = FrozenSegment(graph, rows=ROWS), without(np.arange(14_000), ROWS)
    for copied in ([False], [False, True], [False, True]):
        segment.search(query, count=COUNT, ef=EF, row_filter=few)
        assert graph.copied == copied
    many = without(np.arange(14_000), ROWS)  # another filter, although it passes the same rows
    segment.search(query, count=COUNT, ef=EF, row_filter=many)
    assert graph.copied == [False, True, False]


def test_a_segment_that_missed_its_goal_is_searched_with_a_longer_queue(
    vectors: np.ndarray,
) -> None:
    graph = RecordedGraph(vectors)
    for least_ef in (0, 300):
        segment = FrozenSegment(graph, rows=ROWS, least_ef=least_ef)
        segment.search(unit(1, 5), count=COUNT, ef=EF, row_filter=None)
    assert graph.queues == [EF, 300]


def test_equal_keys_hide_no_others(tmp_path: Path) -> None:
    """2,000 of 6,000 labels share one name; a graph with a node for each would lose others."""
    others = unit(4_000, 6)
    vectors = np.concatenate([np.repeat(unit(1, 7), 2_000, axis=0), others]).astype(np.float16)
    segment = built(vectors, tmp_path / "base.index", PARAMETERS)
    assert (tmp_path / "base.equal.npy").exists()
    assert segment.rows == 6_000
    _, rows = segment.search(others, count=1, ef=EF, row_filter=None, share=1)
    assert (rows[:, 0] == np.arange(2_000, 6_000)).mean() >= 0.999
    assert recall(segment, vectors, others[:200], None) >= 0.99
    assert np.array_equal(segment.vectors(np.arange(6_000)), vectors)


def test_one_key_takes_its_share_of_the_places(tmp_path: Path) -> None:
    name, others = unit(1, 8), unit(300, 9)
    vectors = np.concatenate([np.repeat(name, 500, axis=0), others]).astype(np.float16)
    segment = built(vectors, tmp_path / "base.index", PARAMETERS)
    similarities, rows = segment.search(name, count=40, ef=EF, row_filter=None, share=10)
    of_name = rows[0] < 500
    assert rows[0][of_name].tolist() == [*range(5), *range(495, 500)]
    assert np.all(np.diff(similarities[0]) <= 0)
    assert (rows[0] >= 0).all()


@pytest.mark.parametrize("kind", ["first", "later"])
def test_a_filter_passes_rows_of_a_shared_key_one_by_one(tmp_path: Path, kind: str) -> None:
    """This also holds if the dead row is the one that represents its graph node."""
    vectors = np.repeat(unit(400, 10), 2, axis=0).astype(np.float16)  # rows 2i, 2i + 1: one key
    segment = built(vectors, tmp_path / "base.index", PARAMETERS)
    dead = np.arange(0, 800, 2) if kind == "first" else np.arange(1, 800, 2)
    _, rows = segment.search(
        vectors[dead].astype(np.float32), count=1, ef=EF, row_filter=without(dead, 800)
    )
    assert rows[:, 0].tolist() == (dead ^ 1).tolist()


def test_a_damaged_list_of_equal_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "base.index"
    built(np.repeat(unit(10, 12), 2, axis=0).astype(np.float16), path, PARAMETERS)
    good = np.load(tmp_path / "base.equal.npy")
    for bad in (good[:, ::-1], good + 20, good[::-1], good.astype(np.float32), good[0], None):
        if bad is None:
            (tmp_path / "base.equal.npy").write_bytes(b"no array")
        else:
            np.save(tmp_path / "base.equal.npy", bad)
        with pytest.raises(BundleAltered, match=r"base\.equal\.npy"):
            open_segment(path, library="faiss", rows=20, nodes=10, dimension=DIMENSION)


def test_a_part_leaves_out_rows_below_the_mark_that_a_short_walk_does_not_find(
    segment: FrozenSegment, vectors: np.ndarray
) -> None:
    numbers, queries, depth = 30_000 + np.arange(ROWS), unit(6, 15), 200
    part = Part(
        first=30_000,
        stop=30_000 + ROWS,
        rows=numbers,
        segment=segment,
        dead=Tombstones(size=ROWS),
    )
    best = numbers[np.argsort(-(queries @ vectors.astype(np.float32).T), axis=1)]
    whole, _ = part.search(queries, count=depth, ef=300)
    # For every second query, only the 20 best rows of this part are within the depth.
    above = whole[:, 20].copy()
    above[::2] = -1.0
    _, rows = part.search(queries, count=depth, ef=300, above=above)
    for line, (found, expected) in enumerate(zip(rows, best, strict=True)):
        within = 20 if line % 2 else depth
        assert np.isin(expected[:within], found).mean() > 0.95
    assert (rows[1::2, FIRST_ROWS:] == -1).all()
