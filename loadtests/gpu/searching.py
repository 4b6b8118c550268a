"""Exact search on the device by number of rows, compared with an exact scan on the CPU.

Keys and queries are random unit vectors; an exact scan takes as long for any others. A row counts
as recalled if its similarity is at least that of the last exact row, apart from rounding: queries
are rounded to fp16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
REPETITIONS = 20
FP16_TIE = 2e-4  # smaller differences count as equal, because queries are rounded to fp16
DEAD_SHARE = 0.05  # share of the rows with tombstones
_EXACT_QUERIES = 64
_DRAWN_ROWS = 65_536  # rows that are drawn in one step


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The figures of one number of rows; milliseconds by batch size."""

    rows: int
    depth: int
    upload_seconds: float
    milliseconds: dict[str, float]
    with_tombstones: dict[str, float]
    recall: float
    difference: float  # largest difference of a similarity to the CPU's at the same rank

    def row(self) -> Row:
        """Return the report's row."""
        return Row(
            what=f"search {self.rows:,} rows in fp16, ms a batch of so many queries",
            goal="recall 1 but for ties",
            measured=f"{_shown(self.milliseconds)}; {DEAD_SHARE:.0%} dead:"
            f" {_shown(self.with_tombstones)}; recall@{self.depth} {self.recall:.5f}; similarities"
            f" differ by {self.difference:.1e}; uploaded in {self.upload_seconds:.1f} s",
            met=self.recall == 1.0,
            figures=asdict(self),
        )


def measure_search(
    device: ScanDevice, *, rows: int, dimension: int, depth: int, seed: int
) -> Searched:
    """Draw `rows` keys, upload them, and search them."""
    random = np.random.default_rng(seed)
    keys = drawn(random, rows, dimension)
    queries = drawn(random, _EXACT_QUERIES, dimension).astype(np.float32)
    start = perf_counter()
    segment = DeviceSegment(device, keys)
    uploaded = perf_counter() - start
    alive = np.packbits(random.random(rows) >= DEAD_SHARE, bitorder="little")
    recall, difference = _compared(segment, keys, queries, depth)
    return Searched(
        rows=rows,
        depth=depth,
        upload_seconds=uploaded,
        milliseconds=_milliseconds(segment, queries, depth, None),
        with_tombstones=_milliseconds(
            segment, queries, depth, RowFilter(start=0, stop=rows, alive=alive)
        ),
        recall=recall,
        difference=difference,
    )


def drawn(random: np.random.Generator, rows: int, dimension: int) -> Halves:
    """Return random unit vectors [rows, dimension] in fp16."""
    vectors = np.empty((rows, dimension), np.float16)
    for batch in batches(rows, _DRAWN_ROWS):
        part = random.standard_normal((batch.stop - batch.start, dimension), np.float32)
        vectors[batch] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def _compared(
    segment: DeviceSegment, keys: Halves, queries: Floats, depth: int
) -> tuple[float, float]:
    """Return mean recall, and the largest difference of similarities."""
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


def _milliseconds(
    segment: DeviceSegment, queries: Floats, depth: int, row_filter: RowFilter | None
) -> dict[str, float]:
    return {
        str(size): 1000 * median(list(_seconds(segment, queries[:size], depth, row_filter))[1:])
        for size in BATCHES
    }


def _seconds(
    segment: DeviceSegment, queries: Floats, depth: int, row_filter: RowFilter | None
) -> Iterator[float]:
    for _ in range(REPETITIONS + 1):
        start = perf_counter()
        segment.search(queries, count=depth, ef=0, row_filter=row_filter)
        yield perf_counter() - start


def _shown(milliseconds: dict[str, float]) -> str:
    return ", ".join(f"{size}: {value:.2f}" for size, value in milliseconds.items())
