"""`python -m loadtests.write_share`: what writes get of a busy machine, and leave to queries.

Measures the first label after readiness, the processor time of a label, the latency of labels while
queries saturate the service and while other processes keep every core busy, and the latency of
queries while single labels are posted across two seals. Writes write_share.json and write_share.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cyclopts import App

from loadtests.measure import contention, sealing
from loadtests.measure.environment import environment
from loadtests.measure.traffic import Load, warm_up
from loadtests.queries import distinct, read_queries
from loadtests.results import goals, write_goals
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from service.core.bundle import manifest
from training.experiments.service_process import Server, running_server

STARTS = 3  # of servers, for the first label
COST_ROUNDS = 5
SEAL_ROUND_SECONDS = 15.0
BUSY_RATES = (20.0, 60.0)  # labels a second beside busy processes
READS_RATIO = 2.0  # p99 of predictions beside labels over that of quiet rounds

app = App(name="loadtests.write_share", help=__doc__)


@app.default
def write_share(
    *,
    bundle: Path,
    out: Path,
    labels: int = 200,
    label_rate: float = 20.0,
    seconds: float = 20.0,
    rate: float = 100.0,
    flow: float = 200.0,
    seals: bool = True,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle's folder; its texts are the queries.
    out
        Folder for write_share.json and write_share.md.
    labels
        Labels of each round that measures processor time.
    label_rate
        Labels a second beside reads at saturation.
    seconds
        Duration of each measurement beside reads or busy processes.
    rate
        Predictions a second of the rounds across seals.
    flow
        Single labels a second of the rounds across seals.
    seals
        Whether to measure predictions across seals, which takes minutes.
    seed
        Draws queries, labels and arrivals.
    """
    manifest.read(bundle)  # before a minute of work: it may be missing
    console = open_console(stderr=True)
    texts = distinct(read_queries(bundle), seed=seed)
    load = Load(rate=rate, label_rate=label_rate, seconds=seconds, seed=seed)
    console.print("the first label after readiness ...")
    rows = [_first_label(bundle, texts)]
    with running_server(bundle, options=["--no-access-log"]) as server:
        warm_up(server, texts, seconds=3.0)
        console.print("the processor time of a label ...")
        rows.append(_label_cost(server, texts, labels=labels))
        console.print("labels beside reads at saturation, and beside busy processes ...")
        rows += _beside_contention(server, texts, load)
    if seals:
        console.print(f"predictions beside single labels, until {sealing.SEALS} seals ...")
        rows.append(
            _across_seals(bundle, texts, replace(load, label_rate=flow, seconds=SEAL_ROUND_SECONDS))
        )
    Report(
        title="The share of writes",
        settings={"labels": labels, "label_rate": label_rate, "seconds": seconds,
                  "rate": rate, "flow": flow, "bundle": bundle.name},
        environment=environment(),
        rows=rows,
    ).publish(out, "write_share")  # fmt: skip
    return 0


def _first_label(bundle: Path, texts: Iterator[str]) -> Row:
    seconds = []
    for _ in range(STARTS):
        with running_server(bundle, options=["--no-access-log"]) as server:
            seconds.append(contention.first_label_seconds(server, f"{next(texts)} first"))
    return write_goals.first_label_row(seconds)


def _label_cost(server: Server, texts: Iterator[str], *, labels: int) -> Row:
    costs, latencies = [], []
    for number in range(COST_ROUNDS):
        cost, seconds = contention.label_cost(server, texts, labels=labels, prefix=f"cost-{number}")
        costs.append(cost)
        latencies += seconds
    return write_goals.label_cost_row(costs, latencies)


def _beside_contention(server: Server, texts: Iterator[str], load: Load) -> list[Row]:
    outcome, reads = contention.post_beside_saturation(server, texts, load, prefix="saturated")
    what = f"{load.label_rate:g} single labels/s beside reads at saturation"
    rows = [write_goals.labels_row(what, outcome, reads=reads)]
    for rate in BUSY_RATES:
        outcome = contention.post_beside_busy_cores(
            server, texts, replace(load, label_rate=rate), prefix=f"busy-{rate:g}"
        )
        what = f"{rate:g} single labels/s beside a busy process on each core"
        rows.append(write_goals.labels_row(what, outcome))
    return rows


def _across_seals(bundle: Path, texts: Iterator[str], load: Load) -> Row:
    with running_server(bundle, options=["--no-access-log"]) as server:
        warm_up(server, texts, seconds=3.0)
        mixed, seals = sealing.measure_across_seals(server, texts, load, labels_per_request=1)
    what = (
        f"/predict at {load.rate:g}/s while {load.label_rate:g} single labels/s are posted,"
        f" {seals} seals"
    )
    return goals.while_writing_row(what, mixed, ratio=READS_RATIO)


if __name__ == "__main__":
    sys.exit(run(app))
