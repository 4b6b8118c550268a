"""Every index library finds what a full scan finds, with and without filters; bad files fail."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from service.core.errors import BundleAltered, BundleUnsupported, InvalidConfig
from service.core.index.frozen_segment import build_segment, open_segment
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import RowFilter, Segment, batches
from tests.support.vectors import DIMENSION, bitmap, built, unit_rows, units

ROWS = 60
PARAMETERS = {"m": 8, "ef_construction": 80, "ef": 80}


@pytest.fixture(params=["faiss", "hnswlib"])
def library(request: pytest.FixtureRequest) -> str:
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return unit_rows(ROWS, seed=1)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return units(5, seed=2)


@pytest.fixture
def path(library: str, vectors: np.ndarray, tmp_path: Path) -> Path:
    file = tmp_path / "base.index"
    build_segment(vectors, IndexParameters(library=library, **PARAMETERS), file, lambda done: None)
    return file


@pytest.fixture
def segment(library: str, path: Path) -> Segment:
    return open_segment(path, library=library, rows=ROWS, dimension=DIMENSION)


def nearest_of(vectors: np.ndarray, queries: np.ndarray, rows: list[int], count: int):
    """Scan `rows` of `vectors`; return each query's nearest rows and their inner products."""
    similarities = queries @ vectors[rows].astype(np.float32).T
    order = np.argsort(-similarities, axis=1)[:, :count]
    return np.array(rows)[order], np.take_along_axis(similarities, order, 1)


def test_a_segment_finds_what_a_full_scan_finds(
    segment: Segment, vectors: np.ndarray, queries: np.ndarray
) -> None:
    similarities, rows = segment.search(queries, count=10, ef=80, row_filter=None)
    expected_rows, expected = nearest_of(vectors, queries, list(range(ROWS)), 10)
    assert segment.rows == ROWS
    assert rows.tolist() == expected_rows.tolist()
    assert similarities == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("start", "stop", "dead"),
    [
        (0, ROWS, {0, 1, 2, 30, 59}),
        (0, 20, set()),
        (20, ROWS, set()),
        (13, 47, {13, 20, 46}),
        (59, 60, set()),
    ],
)
def test_a_filter_is_obeyed_and_no_row_that_passes_is_lost(
    segment: Segment,
    vectors: np.ndarray,
    queries: np.ndarray,
    start: int,
    stop: int,
    dead: set[int],
) -> None:
    row_filter = RowFilter(start=start, stop=stop, alive=bitmap(ROWS, dead) if dead else None)
    allowed = [row for row in range(start, stop) if row not in dead]
    _, rows = segment.search(queries, count=5, ef=80, row_filter=row_filter)
    expected, _ = nearest_of(vectors, queries, allowed, 5)
    assert rows[:, : expected.shape[1]].tolist() == expected.tolist()
    assert np.all(rows[:, expected.shape[1] :] == -1)


def test_vectors_are_returned_bit_for_bit_in_the_given_order(
    segment: Segment, vectors: np.ndarray
) -> None:
    """A merge of segments builds the next one from these vectors."""
    for rows in ([0], [59, 3, 3, 17], list(range(ROWS))):
        found = segment.vectors(np.array(rows, np.int64))
        assert found.dtype == np.float16
        assert np.array_equal(found, vectors[rows])


def test_places_without_a_row_hold_minus_one(segment: Segment, queries: np.ndarray) -> None:
    _, rows = segment.search(queries, count=ROWS + 3, ef=80, row_filter=None)
    assert rows.shape == (len(queries), ROWS + 3)
    assert sorted(rows[0, :ROWS].tolist()) == list(range(ROWS))
    assert np.all(rows[:, ROWS:] == -1)


def test_a_filter_that_passes_no_row_finds_nothing(segment: Segment, queries: np.ndarray) -> None:
    for row_filter in (
        RowFilter(start=7, stop=7),
        RowFilter(start=3, stop=5, alive=bitmap(ROWS, {3, 4})),
    ):
        _, rows = segment.search(queries, count=4, ef=80, row_filter=row_filter)
        assert np.all(rows == -1)


def test_progress_counts_the_rows(library: str, vectors: np.ndarray, tmp_path: Path) -> None:
    done: list[int] = []
    build_segment(
        vectors, IndexParameters(library=library, **PARAMETERS), tmp_path / "index", done.append
    )
    assert done[-1] == ROWS


@pytest.mark.parametrize(("rows", "dimension"), [(ROWS + 1, DIMENSION), (ROWS, DIMENSION * 2)])
def test_another_size_than_the_manifests_is_refused(
    library: str, path: Path, rows: int, dimension: int
) -> None:
    with pytest.raises(BundleAltered, match=r"base\.index"):
        open_segment(path, library=library, rows=rows, dimension=dimension)


@pytest.mark.parametrize("content", [None, b"", b"x", b"not an index at all" * 40])
def test_a_file_that_is_missing_or_no_index_is_refused(
    library: str, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "base.index").write_bytes(content)
    with pytest.raises(BundleAltered, match=r"base\.index"):
        open_segment(tmp_path / "base.index", library=library, rows=ROWS, dimension=DIMENSION)


def test_a_truncated_index_is_refused(library: str, path: Path) -> None:
    whole = path.read_bytes()
    for size in (1, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(BundleAltered, match=r"base\.index"):
            open_segment(path, library=library, rows=ROWS, dimension=DIMENSION)


def test_an_index_of_another_kind_is_refused(tmp_path: Path, vectors: np.ndarray) -> None:
    faiss = pytest.importorskip("faiss")
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(vectors.astype(np.float32))
    faiss.write_index(flat, str(tmp_path / "base.index"))
    with pytest.raises(BundleAltered, match=r"base\.index"):
        open_segment(tmp_path / "base.index", library="faiss", rows=ROWS, dimension=DIMENSION)


def test_an_unknown_library_is_refused_by_name() -> None:
    with pytest.raises(BundleUnsupported, match=r"'annoy' is unknown .* faiss, hnswlib"):
        load_library("annoy")


@pytest.mark.parametrize(
    ("field", "value"), [("library", "annoy"), ("m", 3), ("ef_construction", 7), ("ef", 4097)]
)
def test_parameters_that_no_library_could_build_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidConfig) as caught:
        IndexParameters(**{field: value})
    assert caught.value.field == field


def test_batches_cover_every_row_once() -> None:
    cut = list(batches(7, 3))
    assert cut == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(batches(0, 3)) == []


def test_a_filters_mask_by_hand() -> None:
    alive = np.array([0b11110111], np.uint8)  # row 3 is dead
    assert RowFilter(start=2, stop=5, alive=alive).mask().tolist() == [True, False, True]
    assert RowFilter(start=2, stop=4).mask().tolist() == [True, True]


def test_a_filter_finds_rows_that_a_walk_would_not_reach(library: str, tmp_path: Path) -> None:
    """Few rows pass the filter, all far from the query: a walk would end before it finds them."""
    drawn = np.random.default_rng(3)
    aside = 4 * np.eye(1, DIMENSION)
    others = drawn.standard_normal((3000, DIMENSION)) + aside
    few = drawn.standard_normal((50, DIMENSION)) - aside
    rows = np.concatenate([others, few])
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    segment = built(rows, tmp_path / "i", IndexParameters(library=library, **PARAMETERS))
    query = np.eye(1, DIMENSION, dtype=np.float32)
    _, found = segment.search(query, count=20, ef=80, row_filter=RowFilter(start=3000, stop=3050))
    wanted, _ = nearest_of(rows, query, list(range(3000, 3050)), 20)
    assert found.tolist() == wanted.tolist()
