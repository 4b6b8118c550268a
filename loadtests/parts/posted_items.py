"""`python -m loadtests.parts.posted_items`: items posted to a memory, scanned and sealed.

For each number of items, taken from a bundle's keys, queries that are keys of other rows look for
the nearest items before and after the items are sealed as the service seals them, one at a time in
this thread, in turns. Reports the processor time of a search, which other work on the machine
changes less than its duration, and the recall of the sealed ones.
Writes posted_items.json and posted_items.md.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import thread_time
from typing import Annotated

import numpy as np
from cyclopts import App, Parameter

from loadtests.measure.environment import environment
from loadtests.measure.item_bundles import drawn_rows
from loadtests.parts.item_search import Search, built_index, in_turns
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.bundle.bundle import open_bundle
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.manifest import ItemFacts
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.libraries import IndexParameters
from service.core.items.item_memory import ItemMemory
from service.core.items.sealed_items import SEALED_EF
from service.core.memory.compaction import FAN_OUT, SegmentPlan, plans_after_put
from service.core.types import Floats, Halves

Numbers = Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())]
Plans = tuple[SegmentPlan, ...]

app = App(name="loadtests.parts.posted_items", help=__doc__)


@app.default
def posted_items(
    *,
    bundle: Path,
    out: Path,
    sizes: Numbers = (10_000, 50_000),
    seal_items: int = 2_000,
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
        Folder for posted_items.json and posted_items.md.
    sizes
        Numbers of posted items.
    seal_items
        The service's setting: items that are sealed together.
    attended
        Items that each query looks for.
    queries
        Queries, at most 1,000.
    seed
        Draws items and queries.
    """
    opened, rows = open_bundle(bundle), []
    parameters = opened.manifest.index.parameters()
    search_in_one_thread()
    for size in sizes:
        items, others = drawn_rows(opened, size, seed=seed)
        vectors = opened.keys[others[:queries]].astype(np.float32)
        scanned, plans = _posted(opened.keys[items], block=seal_items, attended=attended)
        with tempfile.TemporaryDirectory(prefix="keymatch-items-") as folder:
            sealed, built = _sealed(scanned, plans, parameters, Path(folder))
            rows.append(_row(scanned, sealed, vectors, built=built, attended=attended))
    Report(
        title=f"The {attended} nearest of posted items: scanned, and sealed",
        settings={"bundle": bundle.name, "queries": queries, "seal_items": seal_items},
        environment=environment(),
        rows=rows,
    ).publish(out, "posted_items")
    return 0


def _posted(keys: Halves, *, block: int, attended: int) -> tuple[ItemMemory, Plans]:
    """A memory of one item to which all keys [n, d] but the first were posted, and its plans."""
    projected = np.stack([keys, keys], axis=1)  # [M, 2, d]; no query reads them here
    memory = ItemMemory.of(
        ItemFiles(
            facts=ItemFacts(items=1, attended=attended, fingerprint=""),
            ids=["item-0"],
            texts=["text 0"],
            keys=keys[:1],
            projected=projected[:1],
            fusion=Path(),
        )
    )
    plans: Plans = ()
    for number in range(1, len(keys)):
        before = memory.posted.count
        memory = memory.put(f"item-{number}", f"text {number}", keys[number], projected[number])
        plans = plans_after_put(plans, memory.posted, before=before, block=block, fan_out=FAN_OUT)
    return memory, plans


def _sealed(
    memory: ItemMemory, plans: Plans, parameters: IndexParameters, folder: Path
) -> tuple[ItemMemory, float]:
    """The memory with an index for each plan, and the seconds of the longest build, all cores."""
    longest = 0.0
    for number, plan in enumerate(plans):
        vectors = memory.posted.vectors.read(plan.rows)
        segment, seconds = built_index(vectors, parameters, folder / f"{number}.index")
        longest = max(longest, seconds)
        posted = memory.posted.with_index(plan.first, plan.stop, plan.rows, segment)
        memory = replace(memory, posted=posted)
    return memory, longest


def _row(
    scanned: ItemMemory, sealed: ItemMemory, queries: Floats, *, built: float, attended: int
) -> Row:
    def nearest_in(memory: ItemMemory) -> Search:
        return lambda query: memory.nearest_of_one(query, attended)

    ways = {"scan": nearest_in(scanned), "sealed": nearest_in(sealed)}
    scan, walk = in_turns(ways, queries, clock=thread_time).values()
    found = (memory.nearest(queries, attended)[1] for memory in (scanned, sealed))
    recalls = [len(np.intersect1d(*places)) / attended for places in zip(*found, strict=True)]
    segments, recall = sealed.posted.segments, float(np.mean(recalls))
    return Row(
        what=f"{scanned.posted.count:,} posted items",
        goal="",
        measured=f"scan {scan:.3f} ms; sealed {walk:.3f} ms, recall {recall:.4f} with ef"
        f" {SEALED_EF}; {len(segments.sealed)} indexes, {sealed.posted.count - segments.stop:,}"
        f" items scanned; longest build {built:.1f} s",
        figures={
            "scan_ms": scan,
            "sealed_ms": walk,
            "recall": recall,
            "indexes": float(len(segments.sealed)),
            "build_seconds": built,
        },
    )


if __name__ == "__main__":
    sys.exit(run(app))
