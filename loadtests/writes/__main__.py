"""`python -m loadtests.writes`: the speed of writes on a busy machine, and their cost for queries.

Measures the first label after readiness, the CPU time per label, and the time until a label is
synced and visible. Then the latency of labels while queries saturate the service or other processes
keep every core busy, and the latency of queries while labels are posted across two seals. Finally a
bulk stream of labels, changes of their metadata, deletions, and the recall of the grown memory
against an exact scan. Writes writes.json and writes.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

from loadtests.bare_predictor import recall_of_queries, recall_row
from loadtests.clients.connection import delete, one_by_one, put_label
from loadtests.clients.open_loop import Outcome
from loadtests.harness import Scenario, command, said, say
from loadtests.report import Row, failures_text
from loadtests.resources import resident_row, with_cpu_time
from loadtests.traffic import Load, Summary, latency_row, warm_up
from loadtests.writes import growth, labels
from loadtests.writes.labels import WhileWriting
from service.child_server import Server
from service.command_line import run

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


@dataclass(frozen=True, kw_only=True)
class Writes(Scenario):
    """Labels on new servers, on a busy one, across seals, and in bulk."""

    title = "Writes"

    posts: Annotated[int, said("Number of labels in each round that measures CPU time.")] = 200
    label_rate: Annotated[float, said("Labels per second while queries saturate the service.")] = (
        20.0
    )
    seconds: Annotated[float, said("Duration of each measurement on a busy machine.")] = 20.0
    rate: Annotated[float, said("Predictions per second in the rounds across seals.")] = 100.0
    flow: Annotated[float, said("Labels per second in the rounds across seals.")] = 200.0
    batch: Annotated[
        int,
        said(
            "Labels per request in the second rounds across seals; the first ones post single"
            " labels."
        ),
    ] = 10
    seals: Annotated[
        bool, said("Whether to measure predictions across seals, which takes minutes.")
    ] = True
    inserts: Annotated[int, said("Number of labels that are streamed as NDJSON.")] = 50_000
    deletes: Annotated[int, said("Number of these labels that are deleted again.")] = 10_000
    unseen: Annotated[
        Path | None, said("File of queries for the recall, as in loadtests.latency.")
    ] = None

    def rows(self) -> Iterator[Row]:
        """Measure in the order of the options."""
        texts = self.texts()
        load = Load(
            rate=self.rate, label_rate=self.label_rate, seconds=self.seconds, seed=self.seed
        )
        say("the first label after readiness ...")
        yield self._first_label(texts)
        with self.server() as server:
            warm_up(server, texts)
            say("single labels ...")
            yield from _single_labels(server, texts, posts=self.posts)
            say("labels while reads saturate the service, and while all cores are busy ...")
            yield from _on_a_busy_machine(server, texts, load)
        if self.seals:
            flowing = replace(load, label_rate=self.flow, seconds=SEAL_ROUND_SECONDS)
            for size, ratio in ((1, READS_RATIO), (self.batch, READS_RATIO_IN_BATCHES)):
                say(f"predictions while labels are posted, until {growth.SEALS} seals ...")
                yield self._across_seals(texts, flowing, batch=size, ratio=ratio)
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

    def _across_seals(self, texts: Iterator[str], load: Load, *, batch: int, ratio: float) -> Row:
        with self.server() as server:
            warm_up(server, texts)
            mixed, seals = growth.measure_across_seals(
                server, texts, load, labels_per_request=batch
            )
        what = (
            f"/predict at {load.rate:g}/s while {load.label_rate:g} labels/s are posted,"
            f" {batch} a request, {seals} seals"
        )
        return while_writing_row(what, mixed, ratio=ratio)

    def _grown(self, texts: Iterator[str]) -> Iterator[Row]:
        """Post a bulk stream and delete part of it, then measure the grown memory's recall."""
        inserts = self.inserts
        with TemporaryDirectory(prefix="keymatch-writes-") as folder:
            state = Path(folder) / "state"
            with self.server(state=state) as server:
                posted = list(islice(labels.new_labels(texts, "bulk"), inserts))
                created, seconds = labels.write_in_bulk(server, posted)
                yield Row.bounded(
                    f"bulk NDJSON, {inserts:,} labels, each synced and visible",
                    created / seconds,
                    least=BULK_LABELS_PER_SECOND,
                    unit=" labels/s",
                    measured=f"{created / seconds:.0f} labels/s ({created:,} created in"
                    f" {seconds:.0f} s)",
                    sound=created == inserts,
                    figures={"seconds": seconds, "created": created},
                )
                yield from changed_rows(server, [label["id"] for label in posted])
                deletions = [delete(f"/labels/{label['id']}") for label in posted[: self.deletes]]
                taken, _ = one_by_one(server.port, deletions)
                yield latency_row("DELETE /labels/{id}", Outcome(latencies=taken))
                growth.wait_until_sealed(server)
                grown = growth.open_grown_memory(self.bundle, state)
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
        work = partial(
            labels.post_single_labels, server, texts, labels=posts, prefix=f"cost-{number}"
        )
        seconds, cpu = with_cpu_time(server.pid, work)
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


def _on_a_busy_machine(server: Server, texts: Iterator[str], load: Load) -> Iterator[Row]:
    outcome, per_second = labels.post_during_saturation(server, texts, load)
    what = f"{load.label_rate:g} single labels/s while reads saturate"
    row = latency_row(what, outcome, p99=LABELS_P99_MS)
    yield replace(
        row,
        measured=f"{row.measured}; {per_second:.0f} queries/s answered",
        figures={**row.figures, "queries_per_second": per_second},
    )
    for rate in BUSY_RATES:
        busy = replace(load, label_rate=rate)
        with labels.busy_cores(server):
            outcome = labels.post_at_rate(server, texts, busy, prefix=f"busy-{rate:g}")
        what = f"{rate:g} single labels/s with a busy process on each core"
        yield latency_row(what, outcome, p99=LABELS_P99_MS)


def changed_rows(server: Server, ids: Sequence[str]) -> Iterator[Row]:
    """Change the price and the stock of labels: as one stream, then some one by one."""
    changes = [
        {"id": label_id, "metadata": {"price": place / 4, "stock": place % 7}}
        for place, label_id in enumerate(ids)
    ]
    work = partial(labels.write_in_bulk, server, changes, method="PATCH")
    (changed, seconds), cpu = with_cpu_time(server.pid, work)
    per_second = changed / seconds
    yield Row.bounded(
        f"bulk NDJSON, {len(changes):,} changes of metadata",
        per_second,
        least=CHANGES_PER_SECOND,
        unit=" changes/s",
        measured=f"{per_second:.0f} changes/s, {1000 * cpu / len(changes):.2f} ms of CPU time each",
        sound=changed == len(changes),
        figures={"seconds": seconds, "changed": changed, "cpu_seconds": cpu},
    )
    again = [{**change, "metadata": {"price": -1}} for change in changes[:PATCHES]]
    taken, cpu = with_cpu_time(server.pid, partial(labels.change_one_by_one, server, again))
    row = latency_row("PATCH /labels/{id}, metadata", Outcome(latencies=taken))
    yield replace(
        row,
        measured=f"{row.measured}; {1000 * cpu / len(again):.2f} ms of CPU time each",
        figures={**row.figures, "cpu_seconds": cpu},
    )


def while_writing_row(what: str, measured: WhileWriting, *, ratio: float) -> Row:
    """Return the row comparing predictions with and without labels; `ratio` is the goal for p99."""
    quiet, writing, labels = map(Summary.of, (measured.quiet, measured.writing, measured.labels))
    failures = dict(measured.failures)
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


app = command(Writes)

if __name__ == "__main__":
    sys.exit(run(app))
