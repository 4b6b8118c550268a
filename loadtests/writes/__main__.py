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
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from cyclopts import App

from loadtests.bare_predictor import recall_of_queries, recall_row
from loadtests.clients.connection import delete, one_by_one, put_label
from loadtests.clients.open_loop import Outcome
from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row, failures_text
from loadtests.resources import resident_row, with_cpu_time
from loadtests.traffic import Load, Summary, latency_row, warm_up
from loadtests.writes import growth, labels
from loadtests.writes.labels import WhileWriting
from service.child_server import Server, running_server
from service.command_line import open_console, run
from service.core.bundle import manifest

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

app = App(name="loadtests.writes", help=__doc__)


@app.default
def writes(
    *,
    bundle: Path,
    out: Path,
    posts: int = 200,
    label_rate: float = 20.0,
    seconds: float = 20.0,
    rate: float = 100.0,
    flow: float = 200.0,
    batch: int = 10,
    seals: bool = True,
    inserts: int = 50_000,
    deletes: int = 10_000,
    unseen: Path | None = None,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle's folder; its texts are the queries.
    out
        Folder for writes.json and writes.md.
    posts
        Number of labels in each round that measures CPU time.
    label_rate
        Labels per second while queries saturate the service.
    seconds
        Duration of each measurement on a busy machine.
    rate
        Predictions per second in the rounds across seals.
    flow
        Labels per second in the rounds across seals.
    batch
        Labels per request in the second rounds across seals; the first ones post single labels.
    seals
        Whether to measure predictions across seals, which takes minutes.
    inserts
        Number of labels that are streamed as NDJSON.
    deletes
        Number of these labels that are deleted again.
    unseen
        File of queries for the recall, as in loadtests.latency.
    seed
        Draws queries, labels and arrivals.
    """
    manifest.read(bundle)  # fail now, not after a minute of work, if it is missing
    console = open_console(stderr=True)
    texts = distinct(read_queries(bundle), seed=seed)
    load = Load(rate=rate, label_rate=label_rate, seconds=seconds, seed=seed)
    console.print("the first label after readiness ...")
    rows = [_first_label(bundle, texts)]
    with running_server(bundle, options=["--no-access-log"]) as server:
        warm_up(server, texts)
        console.print("single labels ...")
        rows += _single_labels(server, texts, posts=posts)
        console.print("labels while reads saturate the service, and while all cores are busy ...")
        rows += _on_a_busy_machine(server, texts, load)
    if seals:
        flowing = replace(load, label_rate=flow, seconds=SEAL_ROUND_SECONDS)
        for size, ratio in ((1, READS_RATIO), (batch, READS_RATIO_IN_BATCHES)):
            console.print(f"predictions while labels are posted, until {growth.SEALS} seals ...")
            rows.append(_across_seals(bundle, texts, flowing, batch=size, ratio=ratio))
    console.print("a bulk stream of labels, deletions, recall of the grown memory ...")
    recalled = islice(distinct(read_queries(bundle, unseen), seed=seed), RECALL_QUERIES)
    rows += _grown(bundle, texts, list(recalled), inserts=inserts, deletes=deletes)
    Report(
        title="Writes",
        settings={"posts": posts, "label_rate": label_rate, "seconds": seconds, "rate": rate,
                  "flow": flow, "inserts": inserts, "deletes": deletes, "bundle": bundle.name},
        rows=rows,
    ).publish(out, "writes")  # fmt: skip
    return 0


def _first_label(bundle: Path, texts: Iterator[str]) -> Row:
    """Measure the first label after readiness, on several servers."""
    milliseconds = []
    for _ in range(STARTS):
        with running_server(bundle, options=["--no-access-log"]) as server:
            request = put_label("first", f"{next(texts)} first")
            [seconds], _ = one_by_one(server.port, [request])
            milliseconds.append(1000 * seconds)
    milliseconds.sort()
    return Row(
        what=f"first label after readiness, {STARTS} starts",
        goal=f"<= {FIRST_LABEL_MS:g} ms",
        measured=f"{', '.join(f'{value:.1f}' for value in milliseconds)} ms",
        met=milliseconds[-1] <= FIRST_LABEL_MS,
        figures={"milliseconds": milliseconds},
    )


def _single_labels(server: Server, texts: Iterator[str], *, posts: int) -> list[Row]:
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
    median = costs[len(costs) // 2]
    return [
        Row(
            what="CPU time per single posted label, the service and its children",
            goal=f"<= {LABEL_CPU_MS:g} ms",
            measured=f"{median:.2f} ms ({costs[0]:.2f} to {costs[-1]:.2f} in {len(costs)} rounds)",
            met=median <= LABEL_CPU_MS,
            figures={"cpu_ms": costs},
        ),
        latency_row(
            "POST /labels, one label, to synced and visible",
            Outcome(latencies=latencies),
            p50=POST_LABEL_MS,
        ),
    ]


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


def _across_seals(
    bundle: Path, texts: Iterator[str], load: Load, *, batch: int, ratio: float
) -> Row:
    with running_server(bundle, options=["--no-access-log"]) as server:
        warm_up(server, texts)
        mixed, seals = growth.measure_across_seals(server, texts, load, labels_per_request=batch)
    what = (
        f"/predict at {load.rate:g}/s while {load.label_rate:g} labels/s are posted,"
        f" {batch} a request, {seals} seals"
    )
    return while_writing_row(what, mixed, ratio=ratio)


def _grown(
    bundle: Path, texts: Iterator[str], queries: list[str], *, inserts: int, deletes: int
) -> Iterator[Row]:
    """Post a bulk stream and delete part of it, then measure the recall of the grown memory."""
    with TemporaryDirectory(prefix="keymatch-writes-") as folder:
        state = Path(folder) / "state"
        with running_server(bundle, state=state, options=["--no-access-log"]) as server:
            posted = list(islice(labels.new_labels(texts, "bulk"), inserts))
            created, seconds = labels.write_in_bulk(server, posted)
            per_second = created / seconds
            yield Row(
                what=f"bulk NDJSON, {inserts:,} labels, each synced and visible",
                goal=f">= {BULK_LABELS_PER_SECOND:g} labels/s",
                measured=f"{per_second:.0f} labels/s ({created:,} created in {seconds:.0f} s)",
                met=created == inserts and per_second >= BULK_LABELS_PER_SECOND,
                figures={"seconds": seconds, "created": created},
            )
            yield from changed_rows(server, [label["id"] for label in posted])
            deletions = [delete(f"/labels/{label['id']}") for label in posted[:deletes]]
            taken, _ = one_by_one(server.port, deletions)
            yield latency_row("DELETE /labels/{id}", Outcome(latencies=taken))
            growth.wait_until_sealed(server)
            grown = growth.open_grown_memory(bundle, state)
            view = grown.memory.view
            recall = recall_of_queries(grown.encoder, view, queries)
            yield recall_row(
                f"recall@{recall.depth} with {view.live_rows:,} live rows ({view.sealed_rows:,} of"
                f" them sealed) and {view.dead_rows:,} dead ones",
                recall,
            )
            yield resident_row(server)


def changed_rows(server: Server, ids: Sequence[str]) -> Iterator[Row]:
    """Change the price and the stock of labels: as one stream, then some one by one."""
    changes = [
        {"id": label_id, "metadata": {"price": place / 4, "stock": place % 7}}
        for place, label_id in enumerate(ids)
    ]
    work = partial(labels.write_in_bulk, server, changes, method="PATCH")
    (changed, seconds), cpu = with_cpu_time(server.pid, work)
    per_second = changed / seconds
    yield Row(
        what=f"bulk NDJSON, {len(changes):,} changes of metadata",
        goal=f">= {CHANGES_PER_SECOND:g} changes/s",
        measured=f"{per_second:.0f} changes/s, {1000 * cpu / len(changes):.2f} ms of CPU time each",
        met=changed == len(changes) and per_second >= CHANGES_PER_SECOND,
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


if __name__ == "__main__":
    sys.exit(run(app))
