"""Short walks through many segments, and filtered walks, lose no row of the retrieval depth."""

import numpy as np
import pytest

from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import RowFilter, Segment
from service.core.memory.compaction import SegmentPlan
from service.core.memory.sealed_rows import FIRST_ROWS, SealedRows

ROWS, DIMENSION, EF = 20_000, 16, 300
FIRST = 5_000


def unit(count: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((count, DIMENSION))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    path = tmp_path_factory.mktemp("segment") / "segment.index"
    library = load_library("faiss")
    parameters = IndexParameters(m=16, ef_construction=100)
    library.build(unit(ROWS, 0).astype(np.float16), parameters, path, lambda rows: None)
    return library.open(path, rows=ROWS, dimension=DIMENSION)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return unit(6, 1).astype(np.float32)


@pytest.fixture
def sealed(segment: Segment) -> SealedRows:
    return SealedRows(
        plan=SegmentPlan(first=FIRST, stop=FIRST + ROWS, level=0, rows=FIRST + np.arange(ROWS)),
        segment=segment,
        instances=np.zeros(ROWS, bool),
        indptr=np.arange(ROWS + 1),
        indices=np.zeros(ROWS, np.int32),
        texts=("",) * ROWS,
    )


def truth(queries: np.ndarray, alive: np.ndarray, count: int) -> np.ndarray:
    scores = queries @ unit(ROWS, 0).astype(np.float16).astype(np.float32).T
    scores[:, ~alive] = -np.inf
    return np.argsort(-scores, axis=1)[:, :count]


def overlap(found: np.ndarray, expected: np.ndarray) -> float:
    pairs = zip(found.tolist(), expected.tolist(), strict=True)
    return float(np.mean([len(set(one) & set(other)) / len(other) for one, other in pairs]))


def test_rows_above_the_mark_are_found_and_rows_below_may_be_left_out(
    sealed: SealedRows, queries: np.ndarray
) -> None:
    everything = np.ones(ROWS, bool)
    best = truth(queries, everything, 200)
    whole, _ = sealed.search(queries, count=200, ef=EF, kind=None)
    # For half of the queries only the twenty best rows of this part are within the depth.
    above = whole[:, 20].copy()
    above[::2] = -1.0

    _, rows = sealed.search(queries, count=200, ef=EF, kind=None, above=above)

    assert overlap(rows[::2] - FIRST, best[::2]) > 0.98
    assert overlap(rows[1::2, :20] - FIRST, best[1::2, :20]) > 0.98
    assert (rows[1::2, FIRST_ROWS:] == -1).all()


@pytest.mark.parametrize(
    ("share", "ef"),
    [
        (0.001, EF),  # walks without the filter and drops dead rows
        (0.02, EF),
        (0.1, 150),  # walks with the filter and a longer queue
        (0.3, 150),
        (0.3, EF),  # scans the alive rows
        (0.9, EF),
        (0.9999, EF),
    ],
)
def test_dead_rows_are_never_found_and_no_alive_row_is_lost(
    segment: Segment, queries: np.ndarray, share: float, ef: int
) -> None:
    alive = np.random.default_rng(2).random(ROWS) >= share
    row_filter = RowFilter(start=0, stop=ROWS, alive=np.packbits(alive, bitorder="little"))

    _, rows = segment.search(queries, count=100, ef=ef, row_filter=row_filter)

    expected = truth(queries, alive, min(100, int(alive.sum())))
    assert alive[rows[rows >= 0]].all()
    assert (rows >= 0).sum(axis=1).tolist() == [expected.shape[1]] * len(queries)
    assert overlap(rows[:, : expected.shape[1]], expected) > 0.97


def test_alive_rows_are_found_where_the_nearest_rows_are_dead(
    segment: Segment, queries: np.ndarray
) -> None:
    """More dead rows than the spare rows that an unfiltered walk finds."""
    alive = np.ones(ROWS, bool)
    alive[truth(queries[:1], alive, 150)[0]] = False
    row_filter = RowFilter(start=0, stop=ROWS, alive=np.packbits(alive, bitorder="little"))

    _, rows = segment.search(queries, count=100, ef=EF, row_filter=row_filter)

    assert overlap(rows, truth(queries, alive, 100)) > 0.97


def test_a_filter_says_which_rows_pass() -> None:
    row_filter = RowFilter(start=2, stop=12, alive=np.packbits([1, 1, 1, 0] * 4, bitorder="little"))

    assert row_filter.allows(np.array([[-1, 1, 2], [3, 11, 10], [12, 15, 4]])).tolist() == [
        [False, False, True],
        [False, False, True],
        [False, False, True],
    ]
