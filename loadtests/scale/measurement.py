"""What one bundle takes: start, memory, latency, processor time and recall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

from loadtests.measure import traffic
from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.footprint import bytes_per_key, resident
from loadtests.measure.latency_summary import Summary
from loadtests.measure.processor_time import process_tree, with_processor_time
from loadtests.measure.recall import Recall, measure_recall
from loadtests.measure.traffic import Load
from loadtests.results.result_table import Row
from loadtests.scale.bundles import Built
from service.core.encoding.encoder import encode
from service.core.types import Role
from training.experiments.service_process import Server, running_server

READY_SECONDS = 1_200.0  # checksums of many gigabytes are verified at the start
WARM_UP_SECONDS = 4.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one number of keys."""

    keys: int
    vector_seconds: float
    index_seconds: float
    ready_seconds: float
    resident_mb: float
    bytes_beyond_vector: float  # on disk and mapped, a key: edges, a second copy, votes
    p50_ms: float
    p99_ms: float
    processor_ms: float  # of the service, a query sent
    recall: float
    worst_recall: float
    depth: int
    failures: dict[str, int]

    def row(self) -> Row:
        """The row of the report."""
        failed = f"; FAILED: {self.failures}" if self.failures else ""
        return Row(
            what=f"{self.keys:,} keys",
            goal="-",
            measured=f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, processor"
            f" {self.processor_ms:.1f} ms a query; recall@{self.depth} {self.recall:.4f};"
            f" {self.resident_mb:.0f} MB resident, {self.bytes_beyond_vector:.0f} bytes a key"
            f" beyond its vector; vectors in {self.vector_seconds:.0f} s, bundle in"
            f" {self.index_seconds:.0f} s, ready in {self.ready_seconds:.1f} s{failed}",
            figures=asdict(self),
        )


def measure(built: Built, queries: Sequence[str], load: Load, *, recall_queries: int) -> Measured:
    """Serve a bundle and send queries that it does not hold."""
    # In a thread of its own: faiss's threads are set for the thread that searches, and the next
    # bundle is built by this one, on all cores.
    with ThreadPoolExecutor(1) as thread:
        recall = thread.submit(_recall, built, queries[:recall_queries]).result()
    with running_server(
        built.folder, options=["--no-access-log"], ready_seconds=READY_SECONDS
    ) as server:
        served = _served(server, cycle(queries), load)
    return Measured(
        keys=built.keys,
        vector_seconds=built.vector_seconds,
        index_seconds=built.index_seconds,
        bytes_beyond_vector=bytes_per_key(built.folder, allowance=0).total,
        recall=recall.mean,
        worst_recall=recall.worst,
        depth=recall.depth,
        **served,
    )


def _served(server: Server, queries: Iterator[str], load: Load) -> dict[str, Any]:
    traffic.warm_up(server, queries, seconds=min(WARM_UP_SECONDS, load.seconds))
    outcome, used = with_processor_time(
        server.pid, lambda: traffic.measure_predictions(server, queries, load)
    )
    latency = Summary.of(outcome.latencies)
    return {
        "ready_seconds": server.seconds_to_ready,
        "resident_mb": sum(resident(pid).total for pid in process_tree(server.pid)),
        "p50_ms": latency.p50,
        "p99_ms": latency.p99,
        "processor_ms": used / len(outcome.late) * 1000,
        "failures": outcome.failures,
    }


def _recall(built: Built, queries: Sequence[str]) -> Recall:
    bare = BarePredictor.open(built.folder)
    vectors = encode(bare.encoder, queries, role=Role.QUERY)
    return measure_recall(bare.view, vectors, depth=bare.options.depth)
