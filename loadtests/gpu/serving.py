"""The whole service on one device: latency, saturation, processor time, and its answers' scores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from loadtests.clients.connection import Connection, predict, require
from loadtests.measure import traffic
from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.latency_summary import Summary
from loadtests.measure.saturation import Level, best, measure_saturation
from loadtests.measure.traffic import Load
from loadtests.results.result_table import Row
from service.core.types import DeviceName
from training.experiments.service_process import Server, running_server

CONNECTIONS = (8, 32, 64)  # tried for saturation: batches of a GPU grow with them
READY_SECONDS = 600.0
TOLERANCE = 1e-3  # of a score, as service/README.md states it

Scores = list[list[float]]  # of each query's labels, descending


@dataclass(frozen=True, kw_only=True)
class Served:
    """The figures of the service on one device."""

    device: DeviceName
    ready_seconds: float
    latency: Summary
    failures: dict[str, int]
    levels: list[Level]

    def row(self) -> Row:
        """The row of the report."""
        rates = ", ".join(f"{at.connections}: {at.per_second:.0f}" for at in self.levels)
        failed = f"; FAILED: {self.failures}" if self.failures else ""
        return Row(
            what=f"the service, device {self.device}",
            goal="-",
            measured=f"open loop {self.latency}; answers/s by connections: {rates}; processor"
            f" {best(self.levels).query_processor_ms:.2f} ms a query; ready in"
            f" {self.ready_seconds:.1f} s{failed}",
            figures=asdict(self),
        )


def measure_service(
    bundle: Path, device: DeviceName, queries: Iterator[str], load: Load, *, compared: Sequence[str]
) -> tuple[Served, Scores]:
    """Serve the bundle on a device; returns figures, and the scores of the `compared` queries."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "keymatch.toml"
        config.write_text(f'[engine]\ndevice = "{device}"\n')
        options = ["--no-access-log", "--config", str(config)]
        with running_server(bundle, options=options, ready_seconds=READY_SECONDS) as server:
            traffic.warm_up(server, queries, seconds=min(4.0, load.seconds))
            outcome = traffic.measure_predictions(server, queries, load)
            levels = measure_saturation(
                server, queries, seconds=load.seconds, levels_of=CONNECTIONS
            )
            scores = served_scores(server, compared)
            return Served(
                device=device,
                ready_seconds=server.seconds_to_ready,
                latency=Summary.of(outcome.latencies),
                failures=outcome.failures,
                levels=levels,
            ), scores


def served_scores(server: Server, queries: Sequence[str]) -> Scores:
    """The scores of each query's labels, as the service answers."""
    connection = Connection(server.port)
    try:
        answers = [require(connection.ask(predict(query))) for query in queries]
    finally:
        connection.close()
    return [[label["score"] for label in answer["results"][0]["keywords"]] for answer in answers]


def exact_scores(bundle: Path, queries: Sequence[str]) -> Scores:
    """The same by exact search on the processor, without the service."""
    bare = BarePredictor.open(bundle)
    options = replace(bare.options, exact=True)
    answer = bare.predictor.predict(bare.view, queries, options)
    return [[label.score for label in prediction.keywords] for prediction in answer.predictions]


def tolerance_row(device: DeviceName, served: Scores, exact: Scores) -> Row:
    """How far scores differ at equal ranks: labels of nearly equal scores may change places."""
    differences = [
        abs(score - other)
        for scores, others in zip(served, exact, strict=True)
        for score, other in zip(scores, others, strict=True)
    ]
    largest = max(differences, default=0.0)
    return Row(
        what=f"answers, device {device}, against exact search on the processor",
        goal=f"scores within {TOLERANCE:g}",
        measured=f"largest difference {largest:.1e}, mean {float(np.mean(differences)):.1e}",
        met=largest <= TOLERANCE,
        figures={"largest": largest, "mean": float(np.mean(differences))},
    )
