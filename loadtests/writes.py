"""`python -m loadtests.writes`: the speed of writes on a busy machine, and their cost for queries.

Measures the first label after readiness, the CPU time per label, and the time until a label is
synced and visible. Then the latency of labels while queries saturate the service or other processes
keep every core busy, and the latency of queries while labels are posted across two seals. Finally a
bulk stream of labels, changes of their metadata, deletions, and the recall of the grown memory
against an exact scan. Writes writes.json and writes.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any
from urllib.parse import quote

import orjson

from loadtests.bare_predictor import recall_of_queries, recall_row
from loadtests.connection import (
    Connection,
    RequestFailed,
    body_of,
    get,
    one_by_one,
    post,
    post_bytes,
    put_label,
)
from loadtests.harness import Scenario, option, say
from loadtests.loops import Outcome, drive
from loadtests.report import Row, failures_text
from loadtests.resources import info_of, metric, metrics_of, resident_row, with_cpu_time
from loadtests.traffic import (
    LABELS,
    PREDICT,
    Load,
    Summary,
    latency_row,
    measure_mixed,
    measure_saturation,
    new_labels,
    warm_up,
)
from service.bulk.memory import find_log, open_memory
from service.child_server import Server
from service.core.index.faiss_hnsw import search_in_one_thread
from service.engine.loaded_bundle import LoadedBundle
from service.settings import EngineSettings

STARTS = 3  # server starts that are measured for the first label
COST_ROUNDS = 5
SEAL_ROUND_SECONDS = 15.0
BUSY_RATES = (20.0, 60.0)  # labels per second while other processes are busy
RECALL_QUERIES = 500

FIRST_LABEL_MS = 30.0
LABEL_CPU_MS = 3.5
POST_LABEL_MS = 15.0  # median time of a label
LABELS_P99_MS = 1_000.0  # while queries saturate the service, or other processes are busy
READS_RATIO, READS_RATIO_IN_BATCHES = 2.0, 1.5  # p99 of predictions, relative to quiet rounds
LONGEST_PAUSE_MS = 50.0
BULK_LABELS_PER_SECOND = 800.0
CHANGES_PER_SECOND = 1_500.0  # of metadata, in bulk
PATCHES = 500  # single changes
NDJSON = "application/x-ndjson"
SATURATING_CONNECTIONS = 8
SEALS = 2  # live rows must become a segment this often during the rounds
SPARE_ROWS = 2_000  # left free in a nearly filled block of live rows
LONGEST_SECONDS = 900.0  # limit for the rounds, and for the end of all sealing
_HEAD_START_SECONDS = 1.0  # of the queries: they saturate the service before the first label
_CHECK_EVERY = 10  # one label in ten is looked up after its answer


@dataclass(frozen=True, kw_only=True)
class Writes(Scenario):
    """Labels on new servers, on a busy one, across seals, and in bulk."""

    title = "Writes"

    posts: int = option("Number of labels in each round that measures CPU time.", 200)
    label_rate: float = option("Labels per second while queries saturate the service.", 20.0)
    seconds: float = option("Duration of each measurement on a busy machine.", 20.0)
    rate: float = option("Predictions per second in the rounds across seals.", 100.0)
    flow: float = option("Labels per second in the rounds across seals.", 200.0)
    batch: int = option(
        "Labels per request in the second rounds across seals; the first ones post single labels.",
        10,
    )
    seals: bool = option("Whether to measure predictions across seals, which takes minutes.", True)
    inserts: int = option("Number of labels that are streamed as NDJSON.", 50_000)
    deletes: int = option("Number of these labels that are deleted again.", 10_000)
    unseen: Path | None = option("File of queries for the recall, as in loadtests.latency.", None)

    def rows(self) -> Iterator[Row]:
        """Measure in the order of the options."""
        texts = self.texts()
        load = Load(label_rate=self.label_rate, seconds=self.seconds, seed=self.seed)
        say("the first label after readiness ...")
        yield self._first_label(texts)
        with self.server() as server:
            warm_up(server, texts)
            say("single labels ...")
            yield from _single_labels(server, texts, posts=self.posts)
            say("labels while reads saturate the service, and while all cores are busy ...")
            yield from _on_a_busy_machine(server, texts, load)
        if self.seals:
            for size, ratio in ((1, READS_RATIO), (self.batch, READS_RATIO_IN_BATCHES)):
                say(f"predictions while labels are posted, until {SEALS} seals ...")
                flowing = Load(
                    rate=self.rate,
                    label_rate=self.flow,
                    labels_per_request=size,
                    seconds=SEAL_ROUND_SECONDS,
                    seed=self.seed,
                )
                yield self._across_seals(texts, flowing, ratio=ratio)
        say("a bulk stream of labels, deletions, recall of the grown memory ...")
        yield from self._grown(texts)

    def _first_label(self, texts: Iterator[str]) -> Row:
        """Measure the first label after readiness, on several servers."""
        milliseconds = []
        for _ in range(STARTS):
            with self.server() as server:
                request = put_label("first", f"{next(texts)} first")
                [seconds], _ = one_by_one(server.port, [request])
                milliseconds.append(1000 * seconds)
        milliseconds.sort()
        return Row.bounded(
            f"first label after readiness, {STARTS} starts",
            milliseconds[-1],
            most=FIRST_LABEL_MS,
            unit=" ms",
            measured=f"{', '.join(f'{value:.1f}' for value in milliseconds)} ms",
            figures={"milliseconds": milliseconds},
        )

    def _across_seals(self, texts: Iterator[str], load: Load, *, ratio: float) -> Row:
        """Alternate rounds without and with labels until enough segments were sealed.

        The block of live rows is nearly filled after each seal, so the next seal follows within a
        few rounds.
        """
        rounds, filled, deadline = [], -1, perf_counter() + LONGEST_SECONDS
        with self.server() as server:
            warm_up(server, texts)
            for turn in count():
                seals = count_seals(server)
                if seals >= SEALS or perf_counter() > deadline:
                    break
                if seals > filled:
                    fill_live_block(server, texts, prefix=f"fill-{turn}")
                    filled = seals
                one = load if turn % 2 else replace(load, label_rate=0.0)
                rounds.append(measure_mixed(server, texts, one, turn=turn))
        what = (
            f"/predict at {load.rate:g}/s while {load.label_rate:g} labels/s are posted,"
            f" {load.labels_per_request} a request, {seals} seals"
        )
        return while_writing_row(what, rounds, ratio=ratio)

    def _grown(self, texts: Iterator[str]) -> Iterator[Row]:
        """Post a bulk stream and delete part of it, then measure the grown memory's recall."""
        with TemporaryDirectory(prefix="keymatch-writes-") as folder:
            state = Path(folder) / "state"
            with self.server(state=state) as server:
                posted = list(islice(new_labels(texts, "bulk"), self.inserts))
                what = "labels, each synced and visible"
                yield bulk_row(server, posted, what, least=BULK_LABELS_PER_SECOND)
                changes = [
                    {"id": label["id"], "metadata": {"price": place / 4, "stock": place % 7}}
                    for place, label in enumerate(posted)
                ]
                what, least = "changes of metadata", CHANGES_PER_SECOND
                yield bulk_row(server, changes, what, least=least, method="PATCH")
                patches = [(label["id"], {"metadata": {"price": -1}}) for label in posted[:PATCHES]]
                yield one_by_one_row(server, "PATCH", patches)
                deletions = [(label["id"], None) for label in posted[: self.deletes]]
                yield one_by_one_row(server, "DELETE", deletions)
                wait_until_sealed(server)
                grown = open_grown_memory(self.bundle, state)
                view = grown.memory.view
                queries = list(islice(self.texts(self.unseen), RECALL_QUERIES))
                recall = recall_of_queries(grown.encoder, view, queries)
                yield recall_row(
                    f"recall@{recall.depth} with {view.live_rows:,} live rows"
                    f" ({view.sealed_rows:,} of them sealed) and {view.dead_rows:,} dead ones",
                    recall,
                )
                yield resident_row(server)


def _single_labels(server: Server, texts: Iterator[str], *, posts: int) -> Iterator[Row]:
    """Measure CPU time and latency of labels posted one after the other, in several rounds."""
    costs, latencies = [], []
    for number in range(COST_ROUNDS):
        labels = list(islice(new_labels(texts, f"cost-{number}"), posts))
        seconds, cpu = with_cpu_time(server.pid, partial(post_single_labels, server, labels))
        costs.append(1000 * cpu / posts)
        latencies += seconds
    costs.sort()
    yield Row.bounded(
        "CPU time per single posted label, the service and its children",
        median(costs),
        most=LABEL_CPU_MS,
        unit=" ms",
        measured=f"{median(costs):.2f} ms ({costs[0]:.2f} to {costs[-1]:.2f} in {len(costs)}"
        " rounds)",
        figures={"cpu_ms": costs},
    )
    what = "POST /labels, one label, to synced and visible"
    yield latency_row(what, Outcome(latencies=latencies), p50=POST_LABEL_MS)


def post_single_labels(server: Server, labels: Sequence[dict[str, Any]]) -> list[float]:
    """Post labels one after the other; return the seconds of each.

    Some are looked up at once, since an answer of 200 promises that the label is visible.
    """
    seconds = []
    for place, label in enumerate(labels):
        requests = [post("/labels", {"labels": [label]})]
        if place % _CHECK_EVERY == 0:
            requests.append(get(f"/labels/{label['id']}"))
        taken, [_, *shown] = one_by_one(server.port, requests)
        seconds.append(taken[0])
        if shown and shown[0]["text"] != label["text"]:
            raise RequestFailed("a label was answered before it was visible")
    return seconds


def _on_a_busy_machine(server: Server, texts: Iterator[str], load: Load) -> Iterator[Row]:
    """Post labels while queries saturate the service, then while other processes are busy."""
    seconds, levels_of = load.seconds + 2 * _HEAD_START_SECONDS, (SATURATING_CONNECTIONS,)
    labels = load.labels(texts, prefix="saturated")  # drawn before another thread draws queries
    with ThreadPoolExecutor(1) as waiting:
        reads = waiting.submit(
            measure_saturation, server, texts, seconds=seconds, levels_of=levels_of
        )
        sleep(_HEAD_START_SECONDS)
        outcome = drive(server.port, [labels])[LABELS]
        [level] = reads.result()
    row = latency_row(
        f"{load.label_rate:g} single labels/s while reads saturate", outcome, p99=LABELS_P99_MS
    )
    yield replace(
        row,
        measured=f"{row.measured}; {level.per_second:.0f} queries/s answered",
        figures={**row.figures, "queries_per_second": level.per_second},
    )
    for rate in BUSY_RATES:
        busy = replace(load, label_rate=rate)
        with busy_cores(server):
            outcome = drive(server.port, [busy.labels(texts, prefix=f"busy-{rate:g}")])[LABELS]
        what = f"{rate:g} single labels/s with a busy process on each core"
        yield latency_row(what, outcome, p99=LABELS_P99_MS)


@contextmanager
def busy_cores(server: Server) -> Iterator[None]:
    """Keep all cores that the server may use busy during the block.

    The busy processes belong to the session of this process and the server. Linux first divides a
    core between sessions (autogroup), so processes of another session would take less.
    """
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in os.sched_getaffinity(server.pid)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# The growing memory -----------------------------------------------------------------------------


def fill_live_block(server: Server, texts: Iterator[str], *, prefix: str) -> None:
    """Post labels until the block of live rows has only `SPARE_ROWS` rows left before it seals."""
    size = EngineSettings().seal_rows
    missing = max(0, size - info_of(server.port)["memory"]["live_rows"] % size - SPARE_ROWS)
    write_in_bulk(server, list(islice(new_labels(texts, prefix), missing)))


def count_seals(server: Server) -> int:
    """Return how many segments the server has sealed, from its metrics."""
    return int(metric(metrics_of(server.port), "keymatch_seal_seconds_count"))


def wait_until_sealed(server: Server) -> None:
    """Wait until every planned segment is built."""
    deadline = perf_counter() + LONGEST_SECONDS
    while info_of(server.port)["memory"]["unsealed_segments"]:
        if perf_counter() > deadline:
            raise TimeoutError(f"the server still seals after {LONGEST_SECONDS:g} seconds")
        sleep(0.5)


def open_grown_memory(bundle: Path, state: Path) -> LoadedBundle:
    """Open a server's memory from its log and segments.

    Raises `LookupError` if the server has not built a segment.
    """
    search_in_one_thread()
    log = find_log(str(state), bundle)
    loaded = open_memory(bundle, log, EngineSettings(), until=log.newest)
    for plan in loaded.memory.view.unsealed_plans():
        raise LookupError(f"no segment holds the live rows {plan.first} to {plan.stop}")
    return loaded


def write_in_bulk(server: Server, lines: Sequence[dict[str, Any]], *, method: str = "POST") -> int:
    """Send labels, or changes of labels (PATCH), in one NDJSON request.

    Returns how many were created or updated. The answer is read only after sending.
    """
    body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    with Connection(server.port) as connection:
        connection.socket.settimeout(None)
        request = post_bytes("/labels", body, media_type=NDJSON, method=method)
        answer = body_of(connection.ask(request))
    written = ("created", "updated")
    return sum(orjson.loads(line).get("status") in written for line in answer.splitlines())


def bulk_row(
    server: Server,
    lines: Sequence[dict[str, Any]],
    what: str,
    *,
    least: float,
    method: str = "POST",
) -> Row:
    """Write in bulk; return the row for the throughput and the CPU time."""
    start = perf_counter()
    work = partial(write_in_bulk, server, lines, method=method)
    written, cpu = with_cpu_time(server.pid, work)
    seconds = perf_counter() - start
    per_second = written / seconds
    return Row.bounded(
        f"bulk NDJSON, {len(lines):,} {what}",
        per_second,
        least=least,
        unit="/s",
        measured=f"{per_second:.0f}/s ({written:,} written in {seconds:.0f} s),"
        f" {1000 * cpu / len(lines):.2f} ms of CPU time each",
        sound=written == len(lines),
        figures={"seconds": seconds, "written": written, "cpu_seconds": cpu},
    )


def one_by_one_row(server: Server, method: str, bodies: Sequence[tuple[str, Any]]) -> Row:
    """Write labels by id, one after the other; return the row for latency and CPU time."""
    requests = [
        post_bytes(
            f"/labels/{quote(label_id, safe='')}",
            b"" if body is None else orjson.dumps(body),
            method=method,
        )
        for label_id, body in bodies
    ]
    (seconds, _), cpu = with_cpu_time(server.pid, partial(one_by_one, server.port, requests))
    row = latency_row(f"{method} /labels/{{id}}", Outcome(latencies=seconds))
    return replace(
        row,
        measured=f"{row.measured}; {1000 * cpu / len(requests):.2f} ms of CPU time each",
        figures={**row.figures, "cpu_seconds": cpu},
    )


def while_writing_row(what: str, rounds: Sequence[Mapping[str, Outcome]], *, ratio: float) -> Row:
    """Return the row comparing predictions with and without labels; `ratio` is the goal for p99."""

    def summary(name: str, *, with_labels: bool) -> Summary:
        chosen = [one[name].latencies for one in rounds if (LABELS in one) == with_labels]
        return Summary.of(list(chain.from_iterable(chosen)))

    quiet, writing = (summary(PREDICT, with_labels=labels) for labels in (False, True))
    labels, failures = summary(LABELS, with_labels=True), Counter[str]()
    for outcome in chain.from_iterable(one.values() for one in rounds):
        failures.update(outcome.failures)
    p50_ratio, p99_ratio = writing.p50 / quiet.p50, writing.p99 / quiet.p99
    return Row(
        what=what,
        goal=f"p99 <= {ratio:g}x its own baseline, no pause over {LONGEST_PAUSE_MS:g} ms",
        measured=f"p50 {p50_ratio:.2f}x, p99 {p99_ratio:.2f}x of the quiet rounds"
        f" ({writing.p99:.1f} / {quiet.p99:.1f} ms), max {writing.maximum:.0f} ms;"
        f" labels p50 {labels.p50:.1f}, p99 {labels.p99:.1f} ms{failures_text(failures)}",
        met=p99_ratio <= ratio and writing.maximum <= LONGEST_PAUSE_MS and not failures,
        figures={
            "quiet": quiet,
            "writing": writing,
            "labels": labels,
            "p50_ratio": p50_ratio,
            "p99_ratio": p99_ratio,
            "failures": failures,
        },
    )


if __name__ == "__main__":
    Writes.command()
