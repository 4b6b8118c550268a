"""`python -m loadtests.live_memory`: the cost of learning while the service answers.

First predictions with and without a steady flow of labels, in alternating rounds, until live rows
were sealed twice. Then, on another server, a bulk stream of labels and deletions, and the recall of
the grown memory against an exact scan. Writes live_memory.json and live_memory.md.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

from cyclopts import App

from loadtests.measure import sealing, writing
from loadtests.measure.environment import environment
from loadtests.measure.traffic import Load
from loadtests.queries import distinct, read_queries
from loadtests.results import goals
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from training.experiments.service_process import running_server

ROUND_SECONDS = 15.0
RECALL_QUERIES = 500

app = App(name="loadtests.live_memory", help=__doc__)


@app.default
def live_memory(
    *,
    bundle: Path,
    out: Path,
    inserts: int = 50_000,
    deletes: int = 10_000,
    rate: float = 100.0,
    label_rate: float = 200.0,
    batch: int = 10,
    unseen: Path | None = None,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle's folder; its texts are the queries.
    out
        Folder for live_memory.json and live_memory.md.
    inserts
        Labels that are streamed as NDJSON.
    deletes
        How many of these labels are deleted again.
    rate
        Predictions a second.
    label_rate
        Labels a second of the steady flow.
    batch
        Labels in each request of the steady flow.
    unseen
        File of queries for the recall, as in loadtests.latency.
    seed
        Draws queries, labels and arrivals.
    """
    console = open_console(stderr=True)
    texts = distinct(read_queries(bundle), seed=seed)
    console.print(f"predictions during a steady flow of labels, until {sealing.SEALS} seals ...")
    load = Load(rate=rate, label_rate=label_rate, seconds=ROUND_SECONDS, seed=seed)
    with running_server(bundle, options=["--no-access-log"]) as server:
        mixed, seals = sealing.measure_across_seals(server, texts, load, labels_per_request=batch)
    what = f"/predict while {label_rate:g} labels/s are posted, {batch} a request, {seals} seals"
    rows = [goals.while_writing_row(what, mixed)]
    console.print("a bulk stream of labels, deletions, recall of the grown memory ...")
    with running_server(bundle, options=["--no-access-log"]) as server:
        labels = list(islice(writing.new_labels(texts, "bulk"), inserts))
        rows.append(goals.bulk_row(writing.post_in_bulk(server, labels)))
        deleted = [label["id"] for label in labels[:deletes]]
        rows.append(goals.deletions_row(writing.delete_labels(server, deleted)))
        sealing.wait_until_sealed(server)
        queries = list(islice(distinct(read_queries(bundle, unseen), seed=seed), RECALL_QUERIES))
        rows.append(_recall_row(bundle, server.state, queries))
        rows.append(goals.resident_row(server))
    Report(
        title="The live memory",
        settings={"inserts": inserts, "deletes": deletes, "rate": rate, "bundle": bundle.name},
        environment=environment(),
        rows=rows,
    ).publish(out, "live_memory")
    return 0


def _recall_row(bundle: Path, state: Path, queries: list[str]) -> Row:
    """Recall of a server's memory, opened here from its log and its segments."""
    encoder, view = sealing.open_grown_memory(bundle, state)
    recall = sealing.measure_grown_recall(encoder, view, queries)
    what = (
        f"recall@{recall.depth} with {view.live_rows:,} live rows ({view.sealed_rows:,} of them"
        f" sealed) and {view.dead_rows:,} dead ones"
    )
    return goals.recall_row(what, recall)


if __name__ == "__main__":
    sys.exit(run(app))
