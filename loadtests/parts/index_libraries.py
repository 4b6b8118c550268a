"""`python -m loadtests.parts.index_libraries`: faiss against hnswlib, through our adapters.

Both libraries index the bundle's keys with the same M and ef_construction. Then they answer the
same queries in alternating blocks, with one thread each.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import orjson
from cyclopts import App
from rich.table import Table

from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.environment import environment
from loadtests.measure.latency_summary import Summary
from loadtests.queries import distinct, read_queries
from service.command_line import open_console, run
from service.core.encoding.encoder import encode
from service.core.index.libraries import LIBRARIES, IndexParameters, load_library
from service.core.index.protocol import Segment
from service.core.index.recall import recall_per_query
from service.core.memory.view import View
from service.core.types import Floats, Role, Rows

_BLOCK_QUERIES = 50  # answered by one library before the next library answers them

app = App(name="loadtests.parts.index_libraries", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The index that one library built."""

    library: str
    seconds: float
    bytes: int
    segment: Segment


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Recall and latency of one library at one queue length."""

    library: str
    ef: int
    recall: float
    milliseconds: Summary


@app.default
def index_libraries(
    *,
    bundle: Path,
    m: int = 32,
    ef_construction: int = 200,
    efs: tuple[int, ...] = (200, 300, 500, 800),
    depth: int = 200,
    queries: int = 1_000,
    unseen: Path | None = None,
    seed: int = 0,
    json: Path | None = None,
) -> int:
    """Build, search, report.

    Parameters
    ----------
    bundle
        The bundle whose keys are indexed and whose encoder encodes the queries.
    m
        Edges of each node.
    ef_construction
        Queue length while building.
    efs
        Queue lengths while searching.
    depth
        Keys that each query retrieves.
    queries
        How many queries each library answers at each queue length.
    unseen
        File of queries that the bundle does not hold, to use instead of its own texts.
    seed
        Draws the queries.
    json
        File for the figures as JSON.
    """
    bare = BarePredictor.open(bundle)
    texts = list(islice(distinct(read_queries(bundle, unseen), seed=seed), queries))
    vectors = encode(bare.encoder, texts, role=Role.QUERY)
    with tempfile.TemporaryDirectory(prefix="keymatch-index-") as folder:
        # The queue of an hnswlib index can only grow, so the lengths must ascend.
        graphs = list(_build(bare.view, m=m, ef_construction=ef_construction, folder=Path(folder)))
        results = list(_search(bare.view, graphs, vectors, efs=sorted(efs), depth=depth))
    open_console().print(_table(graphs, results, depth=depth))
    if json is not None:
        json.write_bytes(orjson.dumps(_document(graphs, results), option=orjson.OPT_INDENT_2))
    return 0


def _build(view: View, *, m: int, ef_construction: int, folder: Path) -> Iterator[Graph]:
    import faiss

    keys = view.bundle.keys
    for name in LIBRARIES:
        path = folder / name
        parameters = IndexParameters(library=name, m=m, ef_construction=ef_construction)
        faiss.omp_set_num_threads(os.cpu_count() or 1)  # building uses all cores
        start = perf_counter()
        load_library(name).build(keys, parameters, path, lambda done: None)
        seconds = perf_counter() - start
        faiss.omp_set_num_threads(1)  # a search uses one core
        segment = load_library(name).open(path, rows=len(keys), dimension=keys.shape[1])
        yield Graph(library=name, seconds=seconds, bytes=path.stat().st_size, segment=segment)


def _search(
    view: View, graphs: list[Graph], vectors: Floats, *, efs: Sequence[int], depth: int
) -> Iterator[SearchResult]:
    exact_similarities, exact_rows = view.retrieve(vectors, depth=depth, exact=True)
    for graph in graphs:  # the first search reads the mapped file's pages from the disk
        graph.segment.search(vectors, count=depth, ef=efs[0], row_filter=None)
    for ef in efs:
        for name, (seconds, rows) in _search_in_turns(graphs, vectors, ef=ef, depth=depth).items():
            recalls = recall_per_query(
                queries=vectors,
                retrieved=np.array(rows),
                exact_rows=exact_rows,
                exact_similarities=exact_similarities,
                vectors_of=view.vectors,
            )
            yield SearchResult(
                library=name,
                ef=ef,
                recall=float(np.mean(recalls)),
                milliseconds=Summary.of(seconds),
            )


def _search_in_turns(
    graphs: list[Graph], vectors: Floats, *, ef: int, depth: int
) -> dict[str, tuple[list[float], list[Rows]]]:
    """Seconds and retrieved rows of each query, by library; the first library alternates."""
    searched: dict[str, tuple[list[float], list[Rows]]] = {
        graph.library: ([], []) for graph in graphs
    }
    for block in range(0, len(vectors), _BLOCK_QUERIES):
        for graph in graphs if block // _BLOCK_QUERIES % 2 == 0 else reversed(graphs):
            seconds, rows = searched[graph.library]
            for vector in vectors[block : block + _BLOCK_QUERIES]:
                start = perf_counter()
                _, nearest = graph.segment.search(vector[None], count=depth, ef=ef, row_filter=None)
                seconds.append(perf_counter() - start)
                rows.append(nearest[0])
    return searched


def _table(graphs: list[Graph], results: list[SearchResult], *, depth: int) -> Table:
    table = Table(title="HNSW libraries")
    for heading in ("library", "build s", "MB", "ef", f"recall@{depth}", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for graph in graphs:
        for result in results:
            if result.library == graph.library:
                table.add_row(
                    graph.library,
                    f"{graph.seconds:.1f}",
                    f"{graph.bytes / 1e6:.0f}",
                    str(result.ef),
                    f"{result.recall:.4f}",
                    f"{result.milliseconds.p50:.2f}",
                    f"{result.milliseconds.p99:.2f}",
                )
    return table


def _document(graphs: list[Graph], results: list[SearchResult]) -> dict[str, Any]:
    return {
        "environment": environment(),
        "built": [
            {"library": graph.library, "seconds": graph.seconds, "bytes": graph.bytes}
            for graph in graphs
        ],
        "searched": [asdict(result) for result in results],
    }


if __name__ == "__main__":
    sys.exit(run(app))
