"""`python -m loadtests.gpu`: all about `device = "cuda"` in one command, where there is a GPU.

Encoding by batch and length, exact search by number of rows with its recall, and the whole service
beside the one on the processor: latency, saturation, processor time, and how far the scores of its
answers differ. Without a GPU it ends with one sentence and status 2. Writes gpu.json, gpu.md and
gpu.png.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import App

from loadtests.gpu import gpu_plot
from loadtests.gpu.encoding import Encoding, measure_encoding
from loadtests.gpu.searching import Searched, measure_search
from loadtests.gpu.serving import Served, exact_scores, measure_service, tolerance_row
from loadtests.measure.environment import environment
from loadtests.measure.traffic import Load
from loadtests.queries import distinct, read_queries
from loadtests.results.result_table import Report, Row
from service.command_line import open_console, run
from service.core.bundle import manifest
from service.core.bundle.manifest import Manifest
from service.core.encoding.encoder import OnnxEncoder
from service.core.types import DeviceName
from service.engine.devices import open_device, require_device
from training.commands.options import MANY

DEVICES: tuple[DeviceName, ...] = ("cuda", "cpu")

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
    """Measure, report, draw.

    Parameters
    ----------
    bundle
        The bundle that both devices serve; its encoder must be in fp32 (`export encoder --quantize
        none`).
    out
        Folder for gpu.json, gpu.md and gpu.png.
    rows
        Numbers of drawn keys that are searched; each takes 2 bytes a dimension of the GPU's memory,
        and of this machine's.
    rate
        Queries a second in the open loop.
    seconds
        Length of the open loop, and of the closed loops together.
    compared
        Queries whose answers are compared with exact search on the processor.
    seed
        Draws keys, queries and arrivals.
    """
    require_device("cuda")
    facts = manifest.read(bundle)
    load = Load(rate=rate, label_rate=0, seconds=seconds, seed=seed)
    encoding = _encoding(bundle, facts)
    searched = [_searched(facts, count, seed) for count in sorted(rows)]
    served, answers = _served(bundle, load, compared)
    Report(
        title="Serving on a GPU",
        settings={"bundle": bundle.name, "rate": rate, "seconds": seconds, "compared": compared},
        environment=environment(),
        rows=[
            *encoding.rows(),
            *(at.row() for at in searched),
            *(at.row() for at in served),
            *answers,
        ],
    ).publish(out, "gpu")
    gpu_plot.draw(out / "gpu.png", encoding, searched, served)
    return 0


def _encoding(bundle: Path, facts: Manifest) -> Encoding:
    _say("encoding ...")
    return measure_encoding(
        OnnxEncoder(bundle, facts.encoder, device="cuda"),
        OnnxEncoder(bundle, facts.encoder),
        tokens=facts.encoder.max_tokens,
    )


def _searched(facts: Manifest, rows: int, seed: int) -> Searched:
    """Search on a device that is opened anew, so that the memory of the last is free again."""
    _say(f"searching {rows:,} rows ...")
    device = open_device("cuda")
    assert device is not None
    dimension, depth = facts.encoder.dimension, facts.predictor.depth
    return measure_search(device, rows=rows, dimension=dimension, depth=depth, seed=seed)


def _served(bundle: Path, load: Load, compared: int) -> tuple[list[Served], list[Row]]:
    """The figures of both devices, and the rows about their answers."""
    texts = read_queries(bundle)
    chosen = list(islice(distinct(texts, seed=load.seed + 1), compared))
    exact = exact_scores(bundle, chosen)
    served, answers = [], []
    for device in DEVICES:
        _say(f"serving, device {device} ...")
        queries = distinct(texts, seed=load.seed)
        figures, scores = measure_service(bundle, device, queries, load, compared=chosen)
        served.append(figures)
        answers.append(tolerance_row(device, scores, exact))
    return served, answers


def _say(sentence: str) -> None:
    open_console(stderr=True).print(sentence)


if __name__ == "__main__":
    sys.exit(run(app))
