"""`python -m loadtests.gpu`: serves with `device = "cuda"`, then on the CPU.

Measures the whole service on both: latency, saturation, CPU time, and differences of the scores
from exact search. Without a GPU it ends with one sentence and status 2. Writes gpu.json and gpu.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from loadtests.bare_predictor import BarePredictor
from loadtests.connection import one_by_one, predict
from loadtests.harness import Scenario, option, say
from loadtests.report import Row, failures_text
from loadtests.traffic import Load, Summary, best, measure_predictions, measure_saturation, warm_up
from service.child_server import Server, running_server
from service.core.types import DeviceName
from service.engine.device import require_device

DEVICES: tuple[DeviceName, ...] = ("cuda", "cpu")
CONNECTIONS = (8, 32, 64)  # tried for saturation: more connections give a GPU larger batches
READY_SECONDS = 600.0
TOLERANCE = 1e-3  # allowed difference of a score, as stated in service/how-it-works.md

Scores = list[list[float]]  # each query's label scores, descending


@dataclass(frozen=True, kw_only=True)
class Gpu(Scenario):
    """One bundle, served by a GPU and by the CPU.

    The bundle's encoder must be in fp32 (`export encoder --quantize none`).
    """

    title = "Serving on a GPU"

    rate: float = option("Queries per second in the open loop.", 100.0)
    seconds: float = option(
        "Length of the open loop; the closed loops together take as long.", 10.0
    )
    compared: int = option("Queries whose answers are compared with exact search on the CPU.", 500)

    def rows(self) -> Iterator[Row]:
        """Yield the row of each device, and the one that compares its answers."""
        require_device("cuda")
        chosen = list(islice(self.texts(order=1), self.compared))
        exact = exact_scores(self.bundle, chosen)
        load = Load(rate=self.rate, seconds=self.seconds, seed=self.seed)
        for name in DEVICES:
            say(f"serving, device {name} ...")
            row, scores = measure_service(self.bundle, name, self.texts(), load, compared=chosen)
            yield row
            yield tolerance_row(name, scores, exact)


def measure_service(
    bundle: Path, device: DeviceName, queries: Iterator[str], load: Load, *, compared: Sequence[str]
) -> tuple[Row, Scores]:
    """Serve the bundle on a device; return its row, and the scores of the `compared` queries."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "keymatch.toml"
        config.write_text(f'[engine]\ndevice = "{device}"\n')
        options = ["--no-access-log", "--config", str(config)]
        with running_server(bundle, options=options, ready_seconds=READY_SECONDS) as server:
            warm_up(server, queries, seconds=load.seconds)
            outcome = measure_predictions(server, queries, load)
            levels = measure_saturation(
                server, queries, seconds=load.seconds, levels_of=CONNECTIONS
            )
            scores = served_scores(server, compared)
    latency, ready = Summary.of(outcome.latencies), server.seconds_to_ready
    rates = ", ".join(f"{level.connections}: {level.per_second:.0f}" for level in levels)
    row = Row(
        what=f"the service, device {device}",
        measured=f"open loop {latency}; answers/s by connections: {rates}; CPU"
        f" {best(levels).query_cpu_ms:.2f} ms a query; ready in {ready:.1f} s"
        f"{failures_text(outcome.failures)}",
        figures={
            "ready_seconds": ready,
            "latency": latency,
            "failures": outcome.failures,
            "levels": levels,
        },
    )
    return row, scores


def served_scores(server: Server, queries: Sequence[str]) -> Scores:
    """Return the scores of each query's labels, as the service answers them."""
    _, answers = one_by_one(server.port, map(predict, queries))
    return [[label["score"] for label in answer["results"][0]["keywords"]] for answer in answers]


def exact_scores(bundle: Path, queries: Sequence[str]) -> Scores:
    """Return the scores of an exact search on the CPU, without the service."""
    bare = BarePredictor.open(bundle)
    options = replace(bare.options, exact=True)
    answer = bare.predictor.predict(bare.view, queries, options)
    return [[label.score for label in prediction.keywords] for prediction in answer.predictions]


def tolerance_row(device: DeviceName, served: Scores, exact: Scores) -> Row:
    """Compare scores rank by rank, since labels with nearly equal scores may change places."""
    differences = [
        np.abs(np.subtract(scores, others))
        for scores, others in zip(served, exact, strict=True)
        if len(scores) + len(others)
    ]
    largest = np.array([part.max() for part in differences] or [0.0])
    mean = float(np.mean(np.concatenate(differences or [np.zeros(1)])))
    within = float(np.mean(largest <= TOLERANCE))
    return Row(
        what=f"answers, device {device}, against exact search on the CPU",
        goal=f"scores within {TOLERANCE:g}",
        measured=f"{within:.1%} of the queries; largest difference {largest.max():.1e}, mean"
        f" {mean:.1e}",
        met=within == 1.0,
        figures={"within": within, "largest": float(largest.max()), "mean": mean},
    )


if __name__ == "__main__":
    Gpu.command()
