"""`python -m loadtests.gpu`: measures everything about `device = "cuda"` in one command.

Measures encoding by batch and length, exact search by number of rows with its recall, and the whole
service on GPU and CPU: latency, saturation, CPU time, and differences of the scores. Without a GPU
it ends with one sentence and status 2. Writes gpu.json and gpu.md again after each row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from loadtests.bare_predictor import BarePredictor
from loadtests.clients.connection import one_by_one, predict
from loadtests.gpu.searching import median_milliseconds, milliseconds_text, search_row
from loadtests.harness import Scenario, command, said, say
from loadtests.queries import distinct, read_queries
from loadtests.report import Row, failures_text
from loadtests.traffic import Load, Summary, best, measure_predictions, measure_saturation, warm_up
from service.child_server import Server, running_server
from service.command_line import run
from service.core.bundle import manifest
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.onnx_session import BATCHES, lengths_up_to
from service.core.types import DeviceName
from service.engine.device import open_device, require_device

DEVICES: tuple[DeviceName, ...] = ("cuda", "cpu")
CONNECTIONS = (8, 32, 64)  # tried for saturation: more connections give a GPU larger batches
READY_SECONDS = 600.0
TOLERANCE = 1e-3  # allowed difference of a score, as stated in service/how-it-works.md

Scores = list[list[float]]  # each query's label scores, descending

_TOKEN = 5  # any token of the vocabulary; its meaning does not affect the time


@dataclass(frozen=True, kw_only=True)
class Gpu(Scenario):
    """Encoding, searching and serving on a GPU, next to the CPU.

    The bundle's encoder must be in fp32 (`export encoder --quantize none`).
    """

    title = "Serving on a GPU"

    sizes: Annotated[
        tuple[int, ...],
        said(
            "Numbers of random keys that are searched. Each key takes 2 bytes per dimension, in the"
            " GPU's memory and in main memory.",
            Parameter(name="--rows", consume_multiple=True, negative=()),
        ),
    ] = (130_000, 1_000_000, 5_000_000)
    rate: Annotated[float, said("Queries per second in the open loop.")] = 100.0
    seconds: Annotated[
        float, said("Length of the open loop; the closed loops together take as long.")
    ] = 10.0
    compared: Annotated[
        int, said("Queries whose answers are compared with exact search on the CPU.")
    ] = 500

    def rows(self) -> Iterator[Row]:
        """Measure encoders, searches and the whole service."""
        require_device("cuda")
        facts = manifest.read(self.bundle)
        dimension, depth = facts.encoder.dimension, facts.predictor.depth
        say("encoding ...")
        on_device = OnnxEncoder(self.bundle, facts.encoder, device="cuda")
        on_cpu = OnnxEncoder(self.bundle, facts.encoder)
        yield from encoding_rows(on_device, on_cpu, tokens=facts.encoder.max_tokens)
        for size in sorted(self.sizes):
            say(f"searching {size:,} rows ...")
            device = open_device("cuda")  # a new one frees the memory of the previous one
            assert device is not None
            yield search_row(device, rows=size, dimension=dimension, depth=depth, seed=self.seed)
        texts = read_queries(self.bundle)
        chosen = list(islice(distinct(texts, seed=self.seed + 1), self.compared))
        exact = exact_scores(self.bundle, chosen)
        load = Load(rate=self.rate, seconds=self.seconds, seed=self.seed)
        for name in DEVICES:
            say(f"serving, device {name} ...")
            row, scores = measure_service(self.bundle, name, self.texts(), load, compared=chosen)
            yield row
            yield tolerance_row(name, scores, exact)


def encoding_rows(on_device: OnnxEncoder, on_cpu: OnnxEncoder, *, tokens: int) -> Iterator[Row]:
    """Time encoders that cut texts at `tokens`, in every batch size; one row per text length."""
    for length in lengths_up_to(tokens):
        text = [_TOKEN] * length
        times = {
            str(texts): median_milliseconds(partial(on_device.embed_batch, [text] * texts))
            for texts in BATCHES
        }
        alone = median_milliseconds(partial(on_cpu.embed_batch, [text]))
        yield Row(
            what=f"encode texts of {length} tokens, ms a batch of so many",
            measured=f"{milliseconds_text(times)}; on the CPU one takes {alone:.2f}",
            figures={"batch_ms": times, "cpu_ms": alone},
        )


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


app = command(Gpu)

if __name__ == "__main__":
    sys.exit(run(app))
