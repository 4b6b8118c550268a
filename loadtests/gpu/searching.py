"""Exact search on the device by number of rows, compared with an exact scan on the CPU.

Keys and queries are random unit vectors; an exact scan takes as long for any others. A row counts
as recalled if its similarity is at least that of the last exact row, apart from rounding: queries
are rounded to fp16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np

from loadtests.report import Row
from service.core.index.choose_ef import recall_per_query
from service.core.index.device_segment import DeviceSegment
from service.core.index.devices import ScanDevice
from service.core.index.exact import exact_search
from service.core.index.protocol import RowFilter, batches
from service.core.types import Floats, Halves

BATCHES = (1, 8, 64)  # queries per batch
REPETITIONS = 30
FP16_TIE = 2e-4  # smaller differences count as equal, because queries are rounded to fp16
DEAD_SHARE = 0.05  # share of the rows with tombstones
_EXACT_QUERIES = 64
_DRAWN_ROWS = 65_536  # rows that are drawn in one step


def search_row(device: ScanDevice, *, rows: int, dimension: int, depth: int, seed: int) -> Row:
    """Draw `rows` keys, upload them, search them, and return the report's row."""
    random = np.random.default_rng(seed)
    keys = drawn(random, rows, dimension)
    queries = unit_vectors(random, _EXACT_QUERIES, dimension)
    start = perf_counter()
    segment = DeviceSegment(device, keys)
    uploaded = perf_counter() - start
    alive = np.packbits(random.random(rows) >= DEAD_SHARE, bitorder="little")
    recall, difference = _compared(segment, keys, queries, depth)
    whole, with_tombstones = (
        {
            str(size): median_milliseconds(
                partial(segment.search, queries[:size], count=depth, ef=0, row_filter=row_filter)
            )
            for size in BATCHES
        }
        for row_filter in (None, RowFilter(start=0, stop=rows, alive=alive))
    )
    return Row(
        what=f"search {rows:,} rows in fp16, ms a batch of so many queries",
        goal="recall 1 but for ties",
        measured=f"{milliseconds_text(whole)}; {DEAD_SHARE:.0%} dead:"
        f" {milliseconds_text(with_tombstones)}; recall@{depth} {recall:.5f}; similarities differ"
        f" by {difference:.1e}; uploaded in {uploaded:.1f} s",
        met=recall == 1.0,
        figures={
            "rows": rows,
            "upload_seconds": uploaded,
            "milliseconds": whole,  # by batch size
            "with_tombstones": with_tombstones,
            "recall": recall,
            "difference": difference,
        },
    )


def drawn(random: np.random.Generator, rows: int, dimension: int) -> Halves:
    """Return random unit vectors [rows, dimension] in fp16."""
    vectors = np.empty((rows, dimension), np.float16)
    for batch in batches(rows, _DRAWN_ROWS):
        vectors[batch] = unit_vectors(random, batch.stop - batch.start, dimension)
    return vectors


def unit_vectors(random: np.random.Generator, rows: int, dimension: int) -> Floats:
    """Return random unit vectors [rows, dimension] in fp32, as an encoder produces them."""
    vectors: Floats = random.standard_normal((rows, dimension), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _compared(
    segment: DeviceSegment, keys: Halves, queries: Floats, depth: int
) -> tuple[float, float]:
    """Return mean recall, and the largest difference of a similarity to the CPU's at its rank."""
    everything = RowFilter(start=0, stop=len(keys))
    exact, exact_rows = exact_search(keys, queries, count=depth, row_filter=everything)
    similarities, rows = segment.search(queries, count=depth, ef=0, row_filter=None)
    shares = recall_per_query(
        queries=queries,
        retrieved=rows,
        exact=(exact, exact_rows),
        vectors_of=segment.vectors,
        tie=FP16_TIE,
    )
    filled = exact_rows >= 0
    return float(np.mean(shares)), float(np.abs(similarities - exact)[filled].max())


def median_milliseconds(work: Callable[[], object]) -> float:
    """Return the median time of some runs; a first run is not timed."""
    work()
    seconds = []
    for _ in range(REPETITIONS):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return 1000 * median(seconds)


def milliseconds_text(by_batch: dict[str, float]) -> str:
    """Return the text for a table cell."""
    return ", ".join(f"{size}: {value:.2f}" for size, value in by_batch.items())
