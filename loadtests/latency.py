"""`python -m loadtests.latency`: compares latency, throughput, recall and size with their goals.

Starts a server itself. Comparisons alternate their two sides within one run, since the machine may
be noisy. Writes latency.json and latency.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
from cyclopts import App

from loadtests.bare_predictor import BarePredictor, recall_of_queries, recall_row
from loadtests.clients.connection import one_by_one, predict
from loadtests.clients.open_loop import Outcome
from loadtests.queries import distinct, read_queries, zipf
from loadtests.report import Report, Row
from loadtests.resources import bytes_per_key, resident_row
from loadtests.saturation import failures_text, measure_saturation, saturation_row
from loadtests.traffic import Load, Summary, measure_predictions, warm_up
from service.child_server import Server, running_server
from service.command_line import open_console, run

PREDICT_P50_MS, PREDICT_P99_MS = 4.0, 10.0  # at the given rate, in an open loop
OVERHEAD_MS = 1.0  # median time that the service adds to the predictor
READY_SECONDS = 3.0
BYTES_PER_KEY = 300.0
WARM_UP_SECONDS = 4.0
_BLOCK_QUERIES = 25  # one side answers this many queries, then the other side answers the same ones

app = App(name="loadtests.latency", help=__doc__)


@app.default
def latency(
    *,
    bundle: Path,
    out: Path,
    seconds: float = 40.0,
    rate: float = 100.0,
    unseen: Path | None = None,
    recall_queries: int = 1_000,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle's folder; its instance and label texts are the queries.
    out
        Folder for latency.json and latency.md.
    seconds
        Length of each measurement; there are four.
    rate
        Predictions per second in the open loops.
    unseen
        File of queries that the bundle does not contain (one per line, or LF-XMC JSON with titles).
        Recall is measured on them or, without a file, on the bundle's own texts.
    recall_queries
        Number of queries for the recall.
    seed
        Draws queries and arrivals.
    """
    console = open_console(stderr=True)
    bare, texts = BarePredictor.open(bundle), read_queries(bundle)
    load = Load(rate=rate, label_rate=0, seconds=seconds, seed=seed)
    queries = distinct(texts, seed=seed)
    console.print("open loop, saturation, overhead ...")
    rows = list(_measure_reading(bundle, bare, queries, zipf(texts, seed=seed), load))
    console.print("recall and size ...")
    recalled = distinct(read_queries(bundle, unseen), seed=seed)
    rows += [_recall_row(bare, list(islice(recalled, recall_queries))), bytes_row(bundle)]
    name = bare.view.bundle.manifest.name
    Report(
        title="Latency, throughput and recall",
        settings={"seconds": seconds, "rate": rate, "bundle": name, "keys": len(texts)},
        rows=rows,
    ).publish(out, "latency")
    return 0


def _measure_reading(
    bundle: Path,
    bare: BarePredictor,
    queries: Iterator[str],
    zipf_queries: Iterator[str],
    load: Load,
) -> Iterator[Row]:
    """Measure only predictions, on a server that has learned nothing."""
    with running_server(bundle, options=["--no-access-log"]) as server:
        yield ready_row(server)
        warm_up(server, queries, seconds=min(WARM_UP_SECONDS, load.seconds))
        for name, texts in (("distinct", queries), ("Zipf", zipf_queries)):
            outcome = measure_predictions(server, texts, load)
            what = f"/predict at {load.rate:g}/s, open loop, {name} queries"
            yield predictions_row(what, outcome)
        yield saturation_row(measure_saturation(server, queries, seconds=load.seconds))
        yield overhead_row(measure_overhead(server, bare, queries, load))
        yield resident_row(server)


def _recall_row(bare: BarePredictor, queries: list[str]) -> Row:
    """Return the row for the recall of the bundle's own index."""
    recall = recall_of_queries(bare.encoder, bare.view, queries)
    ef = bare.view.bundle.manifest.index.ef
    return recall_row(f"recall@{recall.depth} of exact search at ef {ef}", recall)


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Seconds of the same queries over HTTP and without it, and the timing in the answers."""

    http: list[float]
    bare: list[float]
    stages: dict[str, float]  # stage in the answers' timing -> median milliseconds

    @property
    def at_median(self) -> float:
        """Median milliseconds that the service adds."""
        return float(np.median(self.http) - np.median(self.bare)) * 1000


def measure_overhead(
    server: Server, bare: BarePredictor, queries: Iterator[str], load: Load
) -> Overhead:
    """Answer blocks of the same queries with and without the service.

    The side that answers first alternates from block to block.
    """
    http_seconds: list[float] = []
    bare_seconds: list[float] = []
    stages: dict[str, list[float]] = {}
    deadline = perf_counter() + load.seconds
    http_first = True
    while perf_counter() < deadline:
        block = list(islice(queries, _BLOCK_QUERIES))
        for over_http in (http_first, not http_first):
            if over_http:
                seconds, answers = one_by_one(server.port, map(predict, block))
                http_seconds += seconds
                for answer in answers:
                    for stage, milliseconds in answer["timing_ms"].items():
                        stages.setdefault(stage, []).append(milliseconds)
            else:
                bare_seconds += [bare.seconds(query) for query in block]
        http_first = not http_first
    medians = {stage: float(np.median(values)) for stage, values in stages.items()}
    return Overhead(http=http_seconds, bare=bare_seconds, stages=medians)


def ready_row(server: Server) -> Row:
    """Return the row for the time from the start of the process to readiness."""
    return Row(
        what="start of the process to ready",
        goal=f"<= {READY_SECONDS:g} s warm",
        measured=f"{server.seconds_to_ready:.2f} s",
        met=server.seconds_to_ready <= READY_SECONDS,
        figures={"seconds": server.seconds_to_ready},
    )


def predictions_row(what: str, outcome: Outcome) -> Row:
    """Return the row for latencies in an open loop, counted from the intended starts."""
    latency, late = Summary.of(outcome.latencies), Summary.of(outcome.late)
    return Row(
        what=what,
        goal=f"p50 <= {PREDICT_P50_MS:g} ms, p99 <= {PREDICT_P99_MS:g} ms",
        measured=f"{latency}{failures_text(outcome.failures)}",
        met=latency.p50 <= PREDICT_P50_MS
        and latency.p99 <= PREDICT_P99_MS
        and not outcome.failures,
        figures={
            **latency.as_document(),
            "failures": outcome.failures,
            "client_started_late": late.as_document(),
        },
    )


def overhead_row(overhead: Overhead) -> Row:
    """Return the row for the time that the service adds to the predictor's own."""
    http, bare = Summary.of(overhead.http), Summary.of(overhead.bare)
    return Row(
        what="HTTP, JSON and queueing over the bare predictor, paired, one connection",
        goal=f"<= {OVERHEAD_MS:g} ms at the median",
        measured=f"{overhead.at_median:.2f} ms ({http.p50:.2f} over {bare.p50:.2f};"
        f" {http.count:,} queries each)",
        met=overhead.at_median <= OVERHEAD_MS,
        figures={
            "milliseconds": overhead.at_median,
            "http": http.as_document(),
            "bare": bare.as_document(),
            "stages_p50_ms": overhead.stages,
        },
    )


def bytes_row(bundle: Path) -> Row:
    """Return the row for the bytes per key of index and values."""
    size = bytes_per_key(bundle, allowance=BYTES_PER_KEY)
    return Row(
        what="bytes a key beyond its fp16 vector: index and values",
        goal=f"<= {BYTES_PER_KEY:g} plus 4 a value = {size.allowed:.0f}",
        measured=f"{size.total:.0f} (index {size.index:.0f}, values {size.values:.0f};"
        f" {size.keys:,} keys)",
        met=size.total <= size.allowed,
        figures=asdict(size),
    )


if __name__ == "__main__":
    sys.exit(run(app))
