"""`python -m loadtests.gpu`: measures everything about `device = "cuda"` in one command.

Measures encoding by batch and length, exact search by number of rows with its recall, and the whole
service on GPU and CPU: latency, saturation, CPU time, and differences of the scores. Without a GPU
it ends with one sentence and status 2. Writes gpu.json and gpu.md again after each row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
from cyclopts import App

from loadtests.bare_predictor import BarePredictor
from loadtests.clients.connection import one_by_one, predict
from loadtests.gpu.searching import median_milliseconds, milliseconds_text, search_row
from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row, failures_text
from loadtests.traffic import Load, Summary, best, measure_predictions, measure_saturation, warm_up
from service.child_server import Server, running_server
from service.command_line import open_console, run
from service.core.bundle import manifest
from service.core.bundle.manifest import Manifest
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.onnx_session import BATCHES, lengths_up_to
from service.core.types import DeviceName
from service.engine.device import open_device, require_device
from training.commands.options import MANY

NAME = "gpu"  # of the report's files
DEVICES: tuple[DeviceName, ...] = ("cuda", "cpu")
CONNECTIONS = (8, 32, 64)  # tried for saturation: more connections give a GPU larger batches
READY_SECONDS = 600.0
TOLERANCE = 1e-3  # allowed difference of a score, as stated in service/how-it-works.md

Scores = list[list[float]]  # each query's label scores, descending

_TOKEN = 5  # any token of the vocabulary; its meaning does not affect the time

app = App(name="loadtests.gpu", help=__doc__)


@app.default
def gpu(
    *,
    bundle: Path,
    out: Path,
    rows: Annotated[tuple[int, ...], MANY] = (130_000, 1_000_000, 5_000_000),
    rate: float = 100.0,
    seconds: float = 10.0,
    compared: int = 500,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle that both devices serve; its encoder must be in fp32 (`export encoder --quantize
        none`).
    out
        Folder for gpu.json and gpu.md.
    rows
        Numbers of random keys that are searched. Each key takes 2 bytes per dimension, in the GPU's
        memory and in main memory.
    rate
        Queries per second in the open loop.
    seconds
        Length of the open loop; the closed loops together take as long.
    compared
        Queries whose answers are compared with exact search on the CPU.
    seed
        Draws keys, queries and arrivals.
    """
    require_device("cuda")
    facts = manifest.read(bundle)
    load = Load(rate=rate, seconds=seconds, seed=seed)
    report = Report(
        title="Serving on a GPU",
        settings={"bundle": bundle.name, "rate": rate, "seconds": seconds, "compared": compared},
        rows=[],
    )
    parts = chain(
        _encoded(bundle, facts),
        (_searched(facts, count, seed) for count in sorted(rows)),
        _served(bundle, load, compared),
    )
    for row in parts:
        report.rows.append(row)
        report.write(out, NAME)  # a later part may fail
    report.publish(out, NAME)
    return 0


def _encoded(bundle: Path, facts: Manifest) -> Iterator[Row]:
    _say("encoding ...")
    yield from encoding_rows(
        OnnxEncoder(bundle, facts.encoder, device="cuda"),
        OnnxEncoder(bundle, facts.encoder),
        tokens=facts.encoder.max_tokens,
    )


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
            goal="-",
            measured=f"{milliseconds_text(times)}; on the CPU one takes {alone:.2f}",
            figures={"batch_ms": times, "cpu_ms": alone},
        )


def _searched(facts: Manifest, rows: int, seed: int) -> Row:
    """Search on a newly opened device, which frees the memory of the previous one."""
    _say(f"searching {rows:,} rows ...")
    device = open_device("cuda")
    assert device is not None
    dimension, depth = facts.encoder.dimension, facts.predictor.depth
    return search_row(device, rows=rows, dimension=dimension, depth=depth, seed=seed)


def _served(bundle: Path, load: Load, compared: int) -> Iterator[Row]:
    """Yield the row of each device, and the one that compares its answers with exact search."""
    texts = read_queries(bundle)
    chosen = list(islice(distinct(texts, seed=load.seed + 1), compared))
    exact = exact_scores(bundle, chosen)
    for device in DEVICES:
        _say(f"serving, device {device} ...")
        queries = distinct(texts, seed=load.seed)
        row, scores = measure_service(bundle, device, queries, load, compared=chosen)
        yield row
        yield tolerance_row(device, scores, exact)


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
        goal="-",
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


def _say(sentence: str) -> None:
    open_console(stderr=True).print(sentence)


if __name__ == "__main__":
    sys.exit(run(app))
