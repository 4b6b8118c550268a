"""Rows are stored in the order of their clusters, which does not change what a search finds."""

import faiss
import numpy as np
import pytest

from service.core.index.faiss_hnsw import cluster_order
from service.core.index.frozen_segment import build_segment, open_segment
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import RowFilter, Segment
from service.core.types import Floats, Halves
from tests.support.vectors import DIMENSION, unit_rows, units

ROWS, COUNT = 6000, 20


@pytest.fixture(scope="module")
def vectors() -> Halves:
    return unit_rows(ROWS, seed=1)


@pytest.fixture(scope="module")
def queries() -> Floats:
    return units(6, seed=2)


@pytest.fixture(scope="module")
def segments(vectors: Halves, tmp_path_factory: pytest.TempPathFactory) -> tuple[Segment, Segment]:
    """The graph as it is built, and the same graph with its rows in their original order."""
    folder = tmp_path_factory.mktemp("segments")
    parameters = IndexParameters(m=8, ef_construction=80, ef=80)
    build_segment(vectors, parameters, folder / "sorted.index", lambda done: None)
    numbered = faiss.read_index(str(folder / "sorted.index"))
    graph = faiss.downcast_index(numbered.index)
    graph.permute_entries(np.argsort(faiss.vector_to_array(numbered.id_map)))
    faiss.copy_array_to_vector(np.arange(ROWS), numbered.id_map)
    faiss.write_index(numbered, str(folder / "unsorted.index"))
    after, before = (
        open_segment(folder / name, library="faiss", rows=ROWS, dimension=DIMENSION)
        for name in ("sorted.index", "unsorted.index")
    )
    return after, before


def test_the_order_is_a_permutation_that_puts_similar_rows_together(vectors: Halves) -> None:
    order = cluster_order(vectors)
    assert sorted(order.tolist()) == list(range(ROWS))
    wide = vectors.astype(np.float32)

    def similarity_of_neighbours(rows: np.ndarray) -> float:
        return float((wide[rows[1:]] * wide[rows[:-1]]).sum(axis=1).mean())

    assert similarity_of_neighbours(np.arange(ROWS)) < 0.1
    assert similarity_of_neighbours(order) > 0.25


@pytest.mark.parametrize(
    ("start", "stop", "dead"),
    [
        pytest.param(0, ROWS, None, id="no filter"),
        pytest.param(0, ROWS, 10, id="few dead: walk, then drop"),
        pytest.param(0, ROWS, ROWS // 2, id="half dead"),
        pytest.param(400, ROWS, None, id="one kind"),
        pytest.param(700, 760, 5, id="few left: scan"),
        pytest.param(700, 700 + COUNT // 2, None, id="fewer than wanted"),
    ],
)
def test_sorted_and_unsorted_files_give_equal_answers(
    segments: tuple[Segment, Segment], queries: Floats, start: int, stop: int, dead: int | None
) -> None:
    row_filter = None
    if (start, stop, dead) != (0, ROWS, None):
        alive = np.ones(ROWS, bool)
        alive[np.random.default_rng(3).permutation(ROWS)[: dead or 0]] = False
        bits = None if dead is None else np.packbits(alive, bitorder="little")
        row_filter = RowFilter(start=start, stop=stop, alive=bits)
    (found, rows), (expected, expected_rows) = (
        segment.search(queries, count=COUNT, ef=200, row_filter=row_filter) for segment in segments
    )
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(found[rows >= 0], expected[rows >= 0])
