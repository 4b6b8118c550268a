"""`python -m loadtests.latency`: the latency rows of the budget, measured against a real server.

Every comparison alternates its two sides within this run, since the machine may be noisy. Writes
latency.json, latency.md and latency.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from cyclopts import App
from rich.console import Console

from loadtests.measure import traffic
from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.environment import environment
from loadtests.measure.traffic import Load
from loadtests.queries import distinct, read_queries, zipf
from loadtests.results import goals, latency_plot
from loadtests.results.result_table import Report, Row
from service.command_line import run
from training.experiments.service_process import Server, running_server

app = App(name="loadtests.latency", help=__doc__)


@app.default
def latency(
    *,
    bundle: Path,
    out: Path,
    seconds: float = 40.0,
    rate: float = 100.0,
    label_rate: float = 200.0,
    unseen: Path | None = None,
    recall_queries: int = 1_000,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle's folder; traffic asks for its own instance and label texts.
    out
        Folder for latency.json, latency.md and latency.png.
    seconds
        Length of each measurement; there are about seven.
    rate
        Predictions a second in the open loops.
    label_rate
        Labels a second, one a request, beside the predictions.
    unseen
        A file of queries that the bundle does not hold (a line each, or LF-XMC JSON with titles);
        recall is measured on them in place of the bundle's own texts.
    recall_queries
        Queries whose recall is measured.
    seed
        Draws queries and arrivals.
    """
    console = Console(stderr=True)
    bare = BarePredictor.open(bundle)
    texts = read_queries(bundle)
    load = Load(rate=rate, label_rate=label_rate, seconds=seconds, seed=seed)
    fresh = distinct(texts, seed=seed)
    rows: list[Row] = []
    curves: dict[str, list[float]] = {}

    console.print("reading only: open loop, saturation, overhead ...")
    with running_server(bundle, options=["--no-access-log"]) as server:
        rows.append(goals.ready_row(server))
        _warm_up(server, fresh)
        for name, queries in (("distinct", fresh), ("Zipf", zipf(texts, seed=seed))):
            outcome = traffic.predictions(server, queries, load)
            rows.append(
                goals.predictions_row(f"/predict at {rate:g}/s, open loop, {name} queries", outcome)
            )
            curves[name] = outcome.latencies
        reached = traffic.saturation(server, fresh, load)
        rows.append(goals.saturation_row(reached))
        rows.append(goals.overhead_row(traffic.overhead(server, bare, fresh, load)))
        rows.append(goals.resident_row(server))
    console.print("writing: single labels, then labels beside predictions ...")
    with running_server(bundle, options=["--no-access-log"]) as server:
        _warm_up(server, fresh)
        posted = traffic.single_labels(server, fresh, count=int(5 * seconds) + 10)
        rows.append(goals.posted_row(posted))
        mixed = traffic.while_writing(server, fresh, load)
        rows.append(
            goals.while_writing_row(f"/predict while {label_rate:g} labels/s are posted", mixed)
        )
        curves["quiet rounds"], curves["rounds with writes"] = mixed.quiet, mixed.writing
    console.print("recall and size ...")
    asked = list(islice(distinct(read_queries(bundle, unseen), seed=seed), recall_queries))
    rows.append(goals.recall_row(bare, asked))
    rows.append(goals.bytes_row(bundle))

    report = Report(
        title="Latency, throughput and recall",
        settings={**asdict(load), "bundle": bare.view.bundle.manifest.name, "keys": len(texts)},
        environment=environment(),
        rows=rows,
    )
    report.write(out, "latency")
    latency_plot.draw(
        out / "latency.png",
        curves,
        {level.connections: level.per_second for level in reached},
        wished_throughput=goals.PER_SECOND,
    )
    Console().print(report.table())
    return 0


def _warm_up(server: Server, queries: Iterator[str]) -> None:
    """Touch the memory-mapped pages, so that the first measurement is not of the disk."""
    short = Load(rate=50, label_rate=0, seconds=4, seed=0)
    traffic.predictions(server, queries, short)


if __name__ == "__main__":
    sys.exit(run(app))
