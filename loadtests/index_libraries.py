"""`python -m loadtests.index_libraries`: faiss against hnswlib, through our adapters, one run.

Both build over the bundle's own keys with the same M and ef_construction, then answer the same
queries by turns, one thread each.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import orjson
from cyclopts import App
from rich.console import Console
from rich.table import Table

from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.environment import environment
from loadtests.measure.latency_summary import Summary
from loadtests.measure.recall import recalls
from loadtests.queries import distinct, read_queries
from service.command_line import run
from service.core.encoding.encoder import encode
from service.core.index.libraries import LIBRARIES, IndexParameters, load_library
from service.core.index.protocol import Segment
from service.core.memory.view import View
from service.core.types import Floats, Role

_BLOCK = 50  # queries that one library answers before it is the other's turn

app = App(name="loadtests.index_libraries", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Built:
    """A graph of one library."""

    library: str
    seconds: float
    bytes: int
    segment: Segment


@dataclass(frozen=True, kw_only=True)
class Searched:
    """One library at one queue length."""

    library: str
    ef: int
    recall: float
    milliseconds: Summary


@app.default
def compare(
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
        Edges a node.
    ef_construction
        Queue length when building.
    efs
        Queue lengths when searching, ascending.
    depth
        Keys wanted a query.
    queries
        How many queries each library answers at each queue length.
    unseen
        A file of queries that the bundle does not hold, in place of its own texts.
    seed
        Draws the queries.
    json
        Where the figures go as JSON.
    """
    bare = BarePredictor.open(bundle)
    asked = list(islice(distinct(read_queries(bundle, unseen), seed=seed), queries))
    vectors = encode(bare.encoder, asked, role=Role.QUERY)
    with tempfile.TemporaryDirectory(prefix="keymatch-index-") as folder:
        # hnswlib's queue only ever grows, so the lengths must ascend.
        built = list(_build(bare.view, m=m, ef_construction=ef_construction, folder=Path(folder)))
        searched = list(_search(bare.view, built, vectors, efs=tuple(sorted(efs)), depth=depth))
    Console().print(_table(built, searched, depth=depth))
    if json is not None:
        json.write_bytes(orjson.dumps(_document(built, searched), option=orjson.OPT_INDENT_2))
    return 0


def _build(view: View, *, m: int, ef_construction: int, folder: Path) -> Iterator[Built]:
    import faiss

    keys = view.bundle.keys
    for name in LIBRARIES:
        path = folder / name
        parameters = IndexParameters(library=name, m=m, ef_construction=ef_construction)
        faiss.omp_set_num_threads(os.cpu_count() or 1)  # building uses all cores
        start = perf_counter()
        load_library(name).build(keys, parameters, path, lambda done: None)
        seconds = perf_counter() - start
        faiss.omp_set_num_threads(1)  # a search uses one
        segment = load_library(name).open(path, rows=len(keys), dimension=keys.shape[1])
        yield Built(library=name, seconds=seconds, bytes=path.stat().st_size, segment=segment)


def _search(
    view: View, built: list[Built], vectors: Floats, *, efs: tuple[int, ...], depth: int
) -> Iterator[Searched]:
    exact_similarities, exact_rows = view.retrieve(vectors, depth=depth, exact=True)
    for graph in built:  # a mapped file's pages come from the disk when they are first touched
        graph.segment.search(vectors, count=depth, ef=efs[0], row_filter=None)
    for ef in efs:
        seconds: dict[str, list[float]] = {graph.library: [] for graph in built}
        rows: dict[str, list[Any]] = {graph.library: [] for graph in built}
        for block in range(0, len(vectors), _BLOCK):
            for graph in built if block // _BLOCK % 2 == 0 else reversed(built):
                for vector in vectors[block : block + _BLOCK]:
                    start = perf_counter()
                    found = graph.segment.search(vector[None], count=depth, ef=ef, row_filter=None)
                    seconds[graph.library].append(perf_counter() - start)
                    rows[graph.library].append(found[1][0])
        for name in seconds:
            found_rows = np.array(rows[name])
            shares = recalls(view, vectors, found_rows, exact_rows, exact_similarities)
            yield Searched(
                library=name,
                ef=ef,
                recall=float(np.mean(shares)),
                milliseconds=Summary.of(seconds[name]),
            )


def _table(built: list[Built], searched: list[Searched], *, depth: int) -> Table:
    table = Table(title="HNSW libraries")
    for heading in ("library", "build s", "MB", "ef", f"recall@{depth}", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for graph in built:
        for found in searched:
            if found.library == graph.library:
                table.add_row(
                    graph.library,
                    f"{graph.seconds:.1f}",
                    f"{graph.bytes / 1e6:.0f}",
                    str(found.ef),
                    f"{found.recall:.4f}",
                    f"{found.milliseconds.p50:.2f}",
                    f"{found.milliseconds.p99:.2f}",
                )
    return table


def _document(built: list[Built], searched: list[Searched]) -> dict[str, Any]:
    return {
        "environment": environment(),
        "built": [
            {"library": graph.library, "seconds": graph.seconds, "bytes": graph.bytes}
            for graph in built
        ],
        "searched": [asdict(found) for found in searched],
    }


if __name__ == "__main__":
    sys.exit(run(app))
