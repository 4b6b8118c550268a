"""`python -m loadtests.latency`: compares latency, throughput, recall and size with their goals.

Starts a server itself. Comparisons alternate their two sides within one run, since the machine may
be noisy. Writes latency.json and latency.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter

from loadtests.bare_predictor import BarePredictor, recall_of_queries, recall_row
from loadtests.connection import one_by_one, predict
from loadtests.harness import Scenario, option, say
from loadtests.queries import read_queries, zipf
from loadtests.report import Row
from loadtests.resources import resident_row, with_cpu_time
from loadtests.traffic import (
    Load,
    Summary,
    latency_row,
    measure_predictions,
    measure_saturation,
    saturation_row,
    warm_up,
)
from service.child_server import Server
from service.core.bundle import manifest
from service.core.bundle.bundle import BASE_SEGMENT

PREDICT_P50_MS, PREDICT_P99_MS = 4.0, 10.0  # at the given rate, in an open loop
OVERHEAD_MS = 1.0  # median time that the service adds to the predictor
READY_SECONDS = 3.0
START_SECONDS = 1_200.0  # the start verifies the checksums of many gigabytes
BYTES_PER_KEY = 300.0
_FP16_BYTES = 2
_COLUMN_BYTES = 4  # of one value in V: the column number of a label
_BLOCK_QUERIES = 25  # one side answers this many queries, then the other side answers the same ones


@dataclass(frozen=True, kw_only=True)
class Latency(Scenario):
    """A server that has learned nothing; the recall and the size of its bundle."""

    title = "Latency, throughput and recall"

    seconds: float = option("Length of each measurement; there are four.", 40.0)
    rate: float = option("Predictions per second in the open loops.", 100.0)
    unseen: Path | None = option(
        "File of queries that the bundle does not contain (one per line, or LF-XMC JSON "
        "with titles). Recall is measured on them or, without a file, on the bundle's own"
        " texts.",
        None,
    )
    recall_queries: int = option("Number of queries for the recall.", 1_000)

    def rows(self) -> Iterator[Row]:
        """Measure the server, then the bundle."""
        bare = BarePredictor.open(self.bundle)
        queries = self.queries()
        load = Load(rate=self.rate, seconds=self.seconds, seed=self.seed)
        say("open loop, saturation, overhead ...")
        with self.server(ready_seconds=START_SECONDS) as server:
            what, seconds = "start of the process to ready", server.seconds_to_ready
            yield Row.bounded(what, seconds, most=READY_SECONDS, unit=" s warm")
            warm_up(server, queries, seconds=self.seconds)
            drawn = zipf(read_queries(self.bundle), seed=self.seed)
            for name, texts in (("distinct", queries), ("Zipf", drawn)):
                work = partial(measure_predictions, server, texts, load)
                outcome, used = with_cpu_time(server.pid, work)
                what = f"/predict at {self.rate:g}/s, open loop, {name} queries"
                row = latency_row(what, outcome, p50=PREDICT_P50_MS, p99=PREDICT_P99_MS)
                cpu = 1000 * used / len(outcome.late)
                yield replace(row, measured=f"{row.measured}; {cpu:.2f} ms of CPU time a query")
            yield saturation_row(measure_saturation(server, queries, seconds=self.seconds))
            yield overhead_row(server, bare, queries, seconds=self.seconds)
            yield resident_row(server)
        say("recall and size ...")
        recalled = list(islice(self.texts(self.unseen), self.recall_queries))
        recall = recall_of_queries(bare.encoder, bare.view, recalled)
        ef = bare.view.bundle.manifest.index.ef
        yield recall_row(f"recall@{recall.depth} of exact search at ef {ef}", recall)
        yield bytes_row(self.bundle)

    def queries(self) -> Iterator[str]:
        """Return the queries of open and closed loops."""
        return self.texts()


def overhead_row(
    server: Server, bare: BarePredictor, queries: Iterator[str], *, seconds: float
) -> Row:
    """Measure the time that the service adds to the predictor's own.

    Both answer the same queries, block by block. The side that answers first alternates.
    """
    http_seconds: list[float] = []
    bare_seconds: list[float] = []
    stages = defaultdict[str, list[float]](list)  # stage in the answers' timing -> milliseconds

    def ask_over_http(block: Sequence[str]) -> None:
        taken, answers = one_by_one(server.port, map(predict, block))
        http_seconds.extend(taken)
        for answer in answers:
            for stage, milliseconds in answer["timing_ms"].items():
                stages[stage].append(milliseconds)

    def ask_alone(block: Sequence[str]) -> None:
        bare_seconds.extend(map(bare.seconds, block))

    deadline, sides = perf_counter() + seconds, [ask_over_http, ask_alone]
    while perf_counter() < deadline:
        block = list(islice(queries, _BLOCK_QUERIES))
        for ask in sides:
            ask(block)
        sides.reverse()
    http, alone = Summary.of(http_seconds), Summary.of(bare_seconds)
    added = http.p50 - alone.p50
    return Row.bounded(
        "HTTP, JSON and queueing over the bare predictor, paired, one connection",
        added,
        most=OVERHEAD_MS,
        unit=" ms at the median",
        measured=f"{added:.2f} ms ({http.p50:.2f} over {alone.p50:.2f};"
        f" {http.count:,} queries each)",
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
    Latency.command()
