"""`python -m loadtests.latency`: compares latency, throughput, recall and size with their goals.

Starts a server itself. Comparisons alternate their two sides within one run, since the machine may
be noisy. Writes latency.json and latency.md.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter

from cyclopts import App

from loadtests.bare_predictor import BarePredictor, recall_of_queries, recall_row
from loadtests.clients.connection import one_by_one, predict
from loadtests.queries import distinct, read_queries, zipf
from loadtests.report import Report, Row
from loadtests.resources import resident_row
from loadtests.saturation import measure_saturation, saturation_row
from loadtests.traffic import Load, Summary, latency_row, measure_predictions, warm_up
from service.child_server import Server, running_server
from service.command_line import open_console, run
from service.core.bundle import manifest
from service.core.bundle.bundle import BASE_SEGMENT

PREDICT_P50_MS, PREDICT_P99_MS = 4.0, 10.0  # at the given rate, in an open loop
OVERHEAD_MS = 1.0  # median time that the service adds to the predictor
READY_SECONDS = 3.0
BYTES_PER_KEY = 300.0
_FP16_BYTES = 2
_COLUMN_BYTES = 4  # of one value in V: the column number of a label
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
    load = Load(rate=rate, seconds=seconds, seed=seed)
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
        warm_up(server, queries, seconds=load.seconds)
        for name, texts in (("distinct", queries), ("Zipf", zipf_queries)):
            outcome = measure_predictions(server, texts, load)
            what = f"/predict at {load.rate:g}/s, open loop, {name} queries"
            yield latency_row(what, outcome, p50=PREDICT_P50_MS, p99=PREDICT_P99_MS)
        yield saturation_row(measure_saturation(server, queries, seconds=load.seconds))
        yield overhead_row(server, bare, queries, seconds=load.seconds)
        yield resident_row(server)


def _recall_row(bare: BarePredictor, queries: list[str]) -> Row:
    """Return the row for the recall of the bundle's own index."""
    recall = recall_of_queries(bare.encoder, bare.view, queries)
    ef = bare.view.bundle.manifest.index.ef
    return recall_row(f"recall@{recall.depth} of exact search at ef {ef}", recall)


def ready_row(server: Server) -> Row:
    """Return the row for the time from the start of the process to readiness."""
    return Row(
        what="start of the process to ready",
        goal=f"<= {READY_SECONDS:g} s warm",
        measured=f"{server.seconds_to_ready:.2f} s",
        met=server.seconds_to_ready <= READY_SECONDS,
        figures={"seconds": server.seconds_to_ready},
    )


def overhead_row(
    server: Server, bare: BarePredictor, queries: Iterator[str], *, seconds: float
) -> Row:
    """Measure the time that the service adds to the predictor's own.

    Both answer the same queries, block by block. The side that answers first alternates.
    """
    http_seconds: list[float] = []
    bare_seconds: list[float] = []
    stages = defaultdict[str, list[float]](list)  # stage in the answers' timing -> milliseconds
    deadline, http_first = perf_counter() + seconds, True
    while perf_counter() < deadline:
        block = list(islice(queries, _BLOCK_QUERIES))
        for over_http in (http_first, not http_first):
            if not over_http:
                bare_seconds += [bare.seconds(query) for query in block]
                continue
            taken, answers = one_by_one(server.port, map(predict, block))
            http_seconds += taken
            for answer in answers:
                for stage, milliseconds in answer["timing_ms"].items():
                    stages[stage].append(milliseconds)
        http_first = not http_first
    http, alone = Summary.of(http_seconds), Summary.of(bare_seconds)
    added = http.p50 - alone.p50
    return Row(
        what="HTTP, JSON and queueing over the bare predictor, paired, one connection",
        goal=f"<= {OVERHEAD_MS:g} ms at the median",
        measured=f"{added:.2f} ms ({http.p50:.2f} over {alone.p50:.2f};"
        f" {http.count:,} queries each)",
        met=added <= OVERHEAD_MS,
        figures={
            "milliseconds": added,
            "http": http,
            "bare": alone,
            "stages_p50_ms": {stage: median(values) for stage, values in stages.items()},
        },
    )


def bytes_row(bundle: Path) -> Row:
    """Return the row for the bytes per key of index and values, without the key's fp16 vector."""
    facts = manifest.read(bundle)
    keys = facts.memory.instances + facts.memory.labels
    sizes = {name: file.bytes for name, file in facts.files.items()}
    values = sum(size for name, size in sizes.items() if name.startswith("values/")) / keys
    index = sizes[BASE_SEGMENT] / keys - _FP16_BYTES * facts.encoder.dimension
    allowed = BYTES_PER_KEY + _COLUMN_BYTES * facts.memory.votes / keys
    return Row(
        what="bytes a key beyond its fp16 vector: index and values",
        goal=f"<= {BYTES_PER_KEY:g} plus {_COLUMN_BYTES} a value = {allowed:.0f}",
        measured=f"{index + values:.0f} (index {index:.0f}, values {values:.0f}; {keys:,} keys)",
        met=index + values <= allowed,
        figures={"keys": keys, "index": index, "values": values, "allowed": allowed},
    )


if __name__ == "__main__":
    sys.exit(run(app))
