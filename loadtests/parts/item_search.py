"""`python -m loadtests.parts.item_search`: items scanned, and found through an index.

For each number of items, taken from a bundle's keys, both ways answer queries that are keys of
other rows, one at a time in this thread, in turns. Reports the milliseconds of a search, and recall
of the index at several lengths of its queue, and the processor time of a write and of a page of 100
items, as the service has them in memory. Writes item_search.json and item_search.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time
from typing import Annotated

import faiss
import numpy as np
from cyclopts import App, Parameter

from loadtests.measure.environment import environment
from loadtests.measure.item_bundles import drawn_rows
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.bundle.bundle import open_bundle
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.item_index import INDEXED_ITEMS, RECALL
from service.core.bundle.manifest import ItemFacts
from service.core.index.choose_ef import smallest_ef
from service.core.index.exact import LiveVectors, exact_search
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import RowFilter, Segment
from service.core.index.recall import mean_recall
from service.core.items.item_memory import ItemMemory
from service.core.types import Floats, Halves

Numbers = Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())]
WRITES, PAGES, PAGE = 500, 20, 100

app = App(name="loadtests.parts.item_search", help=__doc__)

Search = Callable[[Floats], object]


@app.default
def item_search(
    *,
    bundle: Path,
    out: Path,
    sizes: Numbers = (600, 2_000, 10_000, 100_000),
    efs: Numbers = (16, 32, 64),
    attended: int = 3,
    queries: int = 500,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle whose keys are items and queries, and whose index parameters are used.
    out
        Folder for item_search.json and item_search.md.
    sizes
        Numbers of items.
    efs
        Lengths of the index's queue.
    attended
        Items that each query looks for.
    queries
        Queries, at most 1,000.
    seed
        Draws items and queries.
    """
    opened, rows = open_bundle(bundle), []
    search_in_one_thread()
    for size in sizes:
        items, others = drawn_rows(opened, size, seed=seed)
        vectors = opened.keys[others[:queries]].astype(np.float32)
        parameters = opened.manifest.index.parameters()
        rows.append(_row(opened.keys[items], vectors, parameters, efs=efs, attended=attended))
        rows.append(_written(opened.keys[items], attended=attended))
    Report(
        title=f"The {attended} nearest items: scanned, or found through an index",
        settings={"bundle": bundle.name, "queries": queries, "indexed from": INDEXED_ITEMS},
        environment=environment(),
        rows=rows,
    ).publish(out, "item_search")
    return 0


def _row(
    keys: Halves,
    queries: Floats,
    parameters: IndexParameters,
    *,
    efs: tuple[int, ...],
    attended: int,
) -> Row:
    scanned, everything = _scanned(keys), RowFilter(start=0, stop=len(keys))

    def scan(query: Floats) -> object:
        return scanned.search(query, count=attended, row_filter=everything)

    with tempfile.TemporaryDirectory(prefix="keymatch-items-") as folder:
        segment, built = built_index(keys, parameters, Path(folder) / "keys.index")
        ways = {"scan": scan} | {f"ef {ef}": _walk(segment, ef, attended) for ef in efs}
        milliseconds = in_turns(ways, queries)
        recalls = _recalls(segment, keys, queries, efs=efs, attended=attended)
        chosen = smallest_ef(segment, keys, queries, recall=RECALL, depth=attended)
    walks = "; ".join(
        f"ef {ef}: {milliseconds[f'ef {ef}']:.3f} ms, recall {recalls[ef]:.4f}" for ef in efs
    )
    return Row(
        what=f"{len(keys):,} items",
        goal="",
        measured=f"scan {milliseconds['scan']:.3f} ms; {walks}; ef {chosen.ef} has"
        f" {chosen.recall:.4f}; built in {built:.1f} s",
        figures={
            "milliseconds": milliseconds,
            "recall": {str(ef): recall for ef, recall in recalls.items()},
            "build_seconds": built,
        },
    )


def _recalls(
    segment: Segment, keys: Halves, queries: Floats, *, efs: tuple[int, ...], attended: int
) -> dict[int, float]:
    """The recall of the index by the length of its queue."""
    everything = RowFilter(start=0, stop=len(keys))
    exact = exact_search(keys, queries, count=attended, row_filter=everything)
    return {
        ef: mean_recall(
            segment,
            queries,
            ef=ef,
            exact=exact,
            row_filter=None,
            vectors_of=lambda rows: keys[rows],
        )
        for ef in efs
    }


def _written(keys: Halves, *, attended: int) -> Row:
    """Write to a memory of items; the service's log and encoder are no part of it."""
    ids = [f"item-{number:07}" for number in range(len(keys))]
    memory = ItemMemory.of(
        ItemFiles(
            facts=ItemFacts(items=len(keys), attended=attended, fingerprint=""),
            ids=ids,
            texts=ids,
            keys=keys,
            projected=np.stack([keys, keys], axis=1),
            fusion=Path(),
        )
    )
    memory.page(after="", size=1)  # orders the ids, which a bundle has in its files
    start = thread_time()
    for number in range(WRITES):
        memory = memory.put(f"new-{number}", f"new text {number}", keys[0], keys[:2])
        memory = memory.delete(ids[number % len(ids)])
    write = (thread_time() - start) / (2 * WRITES) * 1000
    start = thread_time()
    for number in range(PAGES):
        memory.page(after=ids[number * len(ids) // PAGES], size=PAGE)
    page = (thread_time() - start) / PAGES * 1000
    return Row(
        what=f"{len(keys):,} items: processor time of a write, of a page of {PAGE}",
        goal="",
        measured=f"{write:.3f}, {page:.3f} ms",
        figures={"write_ms": write, "page_ms": page},
    )


def _scanned(keys: Halves) -> LiveVectors:
    vectors = LiveVectors(capacity=len(keys), dimension=keys.shape[1])
    vectors.write(0, keys)
    return vectors


def built_index(keys: Halves, parameters: IndexParameters, path: Path) -> tuple[Segment, float]:
    """The index, and the seconds that building it took on all cores."""
    library, start = load_library(parameters.library), perf_counter()
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    library.build(keys, parameters, path, lambda done: None)
    search_in_one_thread()
    return library.open(path, rows=len(keys), dimension=keys.shape[1]), perf_counter() - start


def _walk(segment: Segment, ef: int, attended: int) -> Search:
    return lambda query: segment.search(query, count=attended, ef=ef, row_filter=None)


def in_turns(
    ways: dict[str, Search], queries: Floats, *, clock: Callable[[], float] = perf_counter
) -> dict[str, float]:
    """The median milliseconds of each way; each query [d] is answered by all ways in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number, query in enumerate(queries):
        for name in ways if number % 2 else reversed(list(ways)):
            start = clock()
            ways[name](query[None])
            seconds[name].append(clock() - start)
    return {name: float(np.median(taken)) * 1000 for name, taken in seconds.items()}


if __name__ == "__main__":
    sys.exit(run(app))
