"""Every index library finds what a full scan finds, with and without filters; bad files fail."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from service.core.errors import BundleAltered, BundleUnsupported, InvalidConfig
from service.core.index.frozen_segment import build_segment, open_segment
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import RowFilter, Segment
from tests.support.vectors import DIMENSION, QUERIES, bitmap, built, slow_search, unit_rows, units

ROWS = 60
VECTORS = unit_rows(ROWS, seed=1)
PARAMETERS = {"m": 8, "ef_construction": 80, "ef": 80}


@pytest.fixture(params=["faiss", "hnswlib"])
def library(request: pytest.FixtureRequest) -> str:
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture
def path(library: str, tmp_path: Path) -> Path:
    file, done = tmp_path / "base.index", list[int]()
    build_segment(VECTORS, IndexParameters(library=library, **PARAMETERS), file, done.append)
    assert done[-1] == ROWS
    return file


@pytest.fixture
def segment(library: str, path: Path) -> Segment:
    return open_segment(path, library=library, rows=ROWS, dimension=DIMENSION)


@pytest.mark.parametrize("count", [10, ROWS + 3])
def test_a_segment_finds_what_a_full_scan_finds(segment: Segment, count: int) -> None:
    similarities, rows = segment.search(QUERIES, count=count, ef=80, row_filter=None)
    assert segment.rows == ROWS
    assert rows.tolist() == slow_search(VECTORS, allowed=list(range(ROWS)), count=count)
    found = rows[:, :ROWS]
    computed = np.einsum("bkd,bd->bk", VECTORS[found].astype(np.float32), QUERIES)
    assert similarities[:, :ROWS] == pytest.approx(computed, abs=1e-5)


@pytest.mark.parametrize(
    ("start", "stop", "dead"),
    [
        (0, ROWS, [0, 1, 2, 30, 59]),
        (0, 20, []),
        (20, ROWS, []),
        (13, 47, [13, 20, 46]),
        (59, 60, []),
        (7, 7, []),
        (3, 5, [3, 4]),
    ],
)
def test_a_filter_is_obeyed_and_no_row_that_passes_is_lost(
    segment: Segment, start: int, stop: int, dead: list[int]
) -> None:
    row_filter = RowFilter(start=start, stop=stop, alive=bitmap(ROWS, dead) if dead else None)
    _, rows = segment.search(QUERIES, count=5, ef=80, row_filter=row_filter)
    allowed = [row for row in range(start, stop) if row not in dead]
    assert rows.tolist() == slow_search(VECTORS, allowed=allowed, count=5)


def test_vectors_are_returned_bit_for_bit_in_the_given_order(segment: Segment) -> None:
    """A merge of segments builds the next one from these vectors."""
    for rows in ([0], [59, 3, 3, 17], list(range(ROWS))):
        found = segment.vectors(np.array(rows, np.int64))
        assert found.dtype == np.float16
        assert np.array_equal(found, VECTORS[rows])


@pytest.mark.parametrize(("rows", "dimension"), [(ROWS + 1, DIMENSION), (ROWS, DIMENSION * 2)])
def test_another_size_than_the_manifests_is_refused(
    library: str, path: Path, rows: int, dimension: int
) -> None:
    with pytest.raises(BundleAltered, match=r"base\.index"):
        open_segment(path, library=library, rows=rows, dimension=dimension)


def test_a_file_that_is_missing_truncated_or_no_index_is_refused(library: str, path: Path) -> None:
    whole = path.read_bytes()
    parts = [whole[:size] for size in (0, 1, 50, len(whole) // 2, len(whole) - 1)]
    for content in (*parts, b"not an index at all" * 40, None):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(BundleAltered, match=r"base\.index"):
            open_segment(path, library=library, rows=ROWS, dimension=DIMENSION)


def test_an_index_of_another_kind_is_refused(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(VECTORS.astype(np.float32))
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


def test_a_filter_finds_rows_that_a_walk_would_not_reach(library: str, tmp_path: Path) -> None:
    """Few rows pass the filter, all far from the queries: a walk would end before it finds them."""
    aside = 4 * QUERIES.mean(axis=0)
    rows = np.concatenate([units(3000, seed=3) + aside, units(50, seed=4) - aside])
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    segment = built(rows, tmp_path / "i", IndexParameters(library=library, **PARAMETERS))
    few = RowFilter(start=3000, stop=3050)
    _, found = segment.search(QUERIES, count=20, ef=80, row_filter=few)
    assert found.tolist() == slow_search(rows, allowed=list(range(3000, 3050)), count=20)
