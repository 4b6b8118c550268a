"""Every index library finds what a full scan finds, with and without filters; bad files fail."""

import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import faiss
import numpy as np
import pytest

from service.core.errors import BundleAltered, BundleUnsupported, InvalidConfig
from service.core.index.exact import LiveVectors, exact_search
from service.core.index.frozen_segment import build_segment, open_segment
from service.core.index.libraries import LIBRARIES, IndexParameters, load_library
from service.core.index.protocol import RowFilter, Segment
from tests.support.vectors import DIMENSION, QUERIES, bitmap, built, slow_search, unit_rows, units

ROWS = 60
VECTORS = unit_rows(ROWS, seed=1)
PACKAGES = {"faiss": "faiss-cpu", "hnswlib": "hnswlib"}
PARAMETERS = {"m": 8, "ef_construction": 80, "ef": 80}
BUILDS = 5
BUILDING = """
import os
import sys
from pathlib import Path
import numpy as np
from loadtests.resources import resident
from service.core.index.frozen_segment import build_segment
from service.core.index.libraries import IndexParameters

library, folder, builds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
vectors = np.load(folder / "vectors.npy")
parameters = IndexParameters(library=library, m=4, ef_construction=8)
for _ in range(builds):
    build_segment(vectors, parameters, folder / "base.index", lambda done: None)
    print(resident(os.getpid()).private)
"""


@pytest.fixture(params=list(LIBRARIES))
def library(request: pytest.FixtureRequest) -> str:
    if find_spec(request.param.partition("-")[0]) is None:
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


def test_a_built_graph_leaves_memory_once_it_is_written(library: str, tmp_path: Path) -> None:
    vectors = unit_rows(5_000, 512)
    np.save(tmp_path / "vectors.npy", vectors)
    # A process of its own: other tests leave gaps in the heap, into which a build may not fit.
    command = [sys.executable, "-c", BUILDING, library, str(tmp_path), str(BUILDS)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    _, _, settled, *_, last = map(float, ended.stdout.split())  # the heap grows in two builds
    assert last - settled < vectors.nbytes / 4e6  # of the two graphs since, none stayed


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
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(VECTORS.astype(np.float32))
    faiss.write_index(flat, str(tmp_path / "base.index"))
    with pytest.raises(BundleAltered, match=r"base\.index"):
        open_segment(tmp_path / "base.index", library="faiss", rows=ROWS, dimension=DIMENSION)


def test_an_unknown_library_is_refused_by_name() -> None:
    with pytest.raises(BundleUnsupported, match=r"'annoy' is unknown .* faiss, faiss-sq4, hnswlib"):
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


# One graph everywhere ------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 3000])
def test_threads_and_runs_do_not_change_a_byte(library: str, tmp_path: Path, rows: int) -> None:
    vectors, parameters = unit_rows(rows, seed=5), IndexParameters(library=library, **PARAMETERS)
    files = []
    for run, threads in enumerate([1, 2, 2]):
        faiss.omp_set_num_threads(threads)
        try:
            built(vectors, tmp_path / f"{run}.index", parameters)
        finally:
            faiss.omp_set_num_threads(1)
        files.append((tmp_path / f"{run}.index").read_bytes())
    assert files == files[:1] * 3


@pytest.mark.parametrize("name", ["faiss", "faiss-sq4"])
def test_a_processor_with_other_instructions_builds_the_same(name: str, tmp_path: Path) -> None:
    """Without AVX2, faiss rounds sums differently, as with AVX-512."""
    config = faiss.SIMDConfig
    if not config.is_simd_level_available(faiss.SIMDLevel_AVX2):
        pytest.skip("the processor has no AVX2")
    parameters, found, files, builders = IndexParameters(library=name), config.get_level(), [], []
    for level in (found, faiss.SIMDLevel_NONE):
        config.set_level(level)
        try:
            built(unit_rows(3000, 64, seed=5), tmp_path / "i", parameters)
            builders.append(load_library(name).builder())
            assert config.get_level() == level
        finally:
            config.set_level(found)
        files.append((tmp_path / "i").read_bytes())
    assert files[0] == files[1]
    assert builders == [f"faiss {faiss.__version__} AVX2"] * 2


def test_a_builder_names_its_library_and_version(library: str) -> None:
    name = library.partition("-")[0]
    assert load_library(library).builder().startswith(f"{name} {version(PACKAGES[name])}")


def test_similarities_have_the_bits_of_a_scan(tmp_path: Path) -> None:
    """What parts of a memory find is merged by similarity, so equal keys must compare equal."""
    rows, queries = unit_rows(3000, 64, seed=6), units(20, 64, seed=7)
    live = LiveVectors(capacity=3000, dimension=64)
    live.write(0, rows)
    everything = RowFilter(start=0, stop=3000)
    few = RowFilter(start=0, stop=3000, alive=bitmap(3000, list(range(100, 3000))))
    graphs = [
        built(rows, tmp_path / name, IndexParameters(library=name))
        for name in ("faiss", "faiss-sq4")
    ]
    for row_filter in (None, few):
        scanned = live.search(queries, count=10, row_filter=row_filter)
        frozen = [exact_search(rows, queries, count=10, row_filter=row_filter or everything)]
        for graph in graphs:
            frozen.append(graph.search(queries, count=10, ef=300, row_filter=row_filter))
        for similarities, places in frozen:
            assert places.tolist() == scanned[1].tolist()
            assert similarities.tobytes() == scanned[0].tobytes()


def test_live_rows_of_one_key_are_found_in_order() -> None:
    """Their order decides which of them vote, and must not depend on other rows."""
    rows = np.concatenate([units(40, seed=8).astype(np.float16), VECTORS[:1], VECTORS[:1]] * 4)
    live = LiveVectors(capacity=len(rows), dimension=DIMENSION)
    live.write(0, rows)
    equal = [place for place in range(len(rows)) if place % 42 >= 40]
    for count in (1, 3, 8):
        found = live.search(VECTORS[:1].astype(np.float32), count=count, row_filter=None)[1]
        assert found[0].tolist() == equal[:count]


def test_equal_keys_and_tombstones(library: str, tmp_path: Path) -> None:
    """Rows of one key are found together, at most `share` of them, and dead ones are skipped."""
    rows = np.concatenate([np.repeat(VECTORS[:1], 9, axis=0), VECTORS[1:]])
    segment = built(rows, tmp_path / "i.index", IndexParameters(library=library, **PARAMETERS))
    assert (segment.rows, segment.nodes) == (ROWS + 8, ROWS)
    query = VECTORS[:1].astype(np.float32)
    similarities, found = segment.search(query, count=12, ef=80, row_filter=None)
    assert found[0, :9].tolist() == list(range(9))
    assert len(set(similarities[0, :9].tolist())) == 1
    alive = RowFilter(start=0, stop=len(rows), alive=bitmap(len(rows), [0, 3]))
    _, found = segment.search(query, count=12, ef=80, row_filter=alive, share=4)
    assert found[0, :4].tolist() == [1, 2, 7, 8]
    assert np.array_equal(segment.vectors(np.arange(len(rows))), rows)
