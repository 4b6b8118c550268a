"""`python -m loadtests.latency`: latency, throughput, recall and size, held against their goals.

Starts servers itself. Comparisons alternate their two sides within one run, since the machine may
be noisy. Writes latency.json, latency.md and latency.png. The goals: loadtests/results/goals.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from cyclopts import App

from loadtests.measure import traffic, writing
from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.environment import environment
from loadtests.measure.recall import measure_recall
from loadtests.measure.saturation import measure_saturation
from loadtests.measure.traffic import Load
from loadtests.queries import distinct, read_queries, zipf
from loadtests.results import goals, latency_plot
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from service.core.encoding.encoder import encode
from service.core.types import Role
from training.experiments.service_process import running_server

WARM_UP_SECONDS = 4.0

app = App(name="loadtests.latency", help=__doc__)


@dataclass(frozen=True, kw_only=True)
class Results:
    """Rows of the report, and what the plot draws."""

    rows: list[Row] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=dict)  # seconds by curve
    throughput: dict[int, float] = field(default_factory=dict)  # a second by connections


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
        The bundle's folder; its instance and label texts are the queries.
    out
        Folder for latency.json, latency.md and latency.png.
    seconds
        Length of each measurement; there are about seven.
    rate
        Predictions a second in the open loops.
    label_rate
        Labels a second, one in each request, that are posted during predictions.
    unseen
        File of queries that the bundle does not hold (one a line, or LF-XMC JSON with titles).
        Recall is measured on them; without it, on the bundle's own texts.
    recall_queries
        Queries whose recall is measured.
    seed
        Draws queries and arrivals.
    """
    console, results = open_console(stderr=True), Results()
    bare, texts = BarePredictor.open(bundle), read_queries(bundle)
    load = Load(rate=rate, label_rate=label_rate, seconds=seconds, seed=seed)
    queries = distinct(texts, seed=seed)
    console.print("reading only: open loop, saturation, overhead ...")
    _measure_reading(bundle, bare, queries, zipf(texts, seed=seed), load, results)
    console.print("writing: single labels, then labels during predictions ...")
    _measure_writing(bundle, queries, load, results)
    console.print("recall and size ...")
    recalled = distinct(read_queries(bundle, unseen), seed=seed)
    results.rows.append(_recall_row(bare, list(islice(recalled, recall_queries))))
    results.rows.append(goals.bytes_row(bundle))
    name = bare.view.bundle.manifest.name
    Report(
        title="Latency, throughput and recall",
        settings={**asdict(load), "bundle": name, "keys": len(texts)},
        environment=environment(),
        rows=results.rows,
    ).publish(out, "latency")
    latency_plot.draw(out / "latency.png", results.latencies, results.throughput)
    return 0


def _measure_reading(
    bundle: Path,
    bare: BarePredictor,
    queries: Iterator[str],
    zipf_queries: Iterator[str],
    load: Load,
    results: Results,
) -> None:
    """Predictions only, on a server that has learned nothing."""
    with running_server(bundle, options=["--no-access-log"]) as server:
        results.rows.append(goals.ready_row(server))
        traffic.warm_up(server, queries, seconds=min(WARM_UP_SECONDS, load.seconds))
        for name, texts in (("distinct", queries), ("Zipf", zipf_queries)):
            outcome = traffic.measure_predictions(server, texts, load)
            what = f"/predict at {load.rate:g}/s, open loop, {name} queries"
            results.rows.append(goals.predictions_row(what, outcome))
            results.latencies[name] = outcome.latencies
        levels = measure_saturation(server, queries, seconds=load.seconds)
        results.rows.append(goals.saturation_row(levels))
        results.throughput.update({level.connections: level.per_second for level in levels})
        overhead = traffic.measure_overhead(server, bare, queries, load)
        results.rows.append(goals.overhead_row(overhead))
        results.rows.append(goals.resident_row(server))


def _measure_writing(bundle: Path, queries: Iterator[str], load: Load, results: Results) -> None:
    """Posted labels, on a fresh server: alone, then during predictions."""
    with running_server(bundle, options=["--no-access-log"]) as server:
        traffic.warm_up(server, queries, seconds=min(WARM_UP_SECONDS, load.seconds))
        seconds = writing.post_single_labels(server, queries, labels=int(5 * load.seconds) + 10)
        results.rows.append(goals.posted_row(seconds))
        mixed = writing.measure_while_writing(server, queries, load)
        what = f"/predict while {load.label_rate:g} labels/s are posted"
        results.rows.append(goals.while_writing_row(what, mixed))
        results.latencies["quiet rounds"] = mixed.quiet
        results.latencies["rounds with writes"] = mixed.writing


def _recall_row(bare: BarePredictor, queries: list[str]) -> Row:
    """Recall of the bundle's own index."""
    vectors = encode(bare.encoder, queries, role=Role.QUERY)
    recall = measure_recall(bare.view, vectors, depth=bare.options.depth)
    ef = bare.view.bundle.manifest.index.ef
    return goals.recall_row(f"recall@{recall.depth} of exact search at ef {ef}", recall)


if __name__ == "__main__":
    sys.exit(run(app))
