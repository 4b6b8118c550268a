"""`python -m loadtests.gpu`: compares `device = "cuda"` with the CPU, and both with exact search.

Both servers run at the same time and take turns. Without a GPU it ends with one sentence and status
2. Writes gpu.json and gpu.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from loadtests.bare_predictor import BarePredictor
from loadtests.connection import one_by_one, predict
from loadtests.harness import option
from loadtests.report import Row
from loadtests.versions import TwoServers
from service.child_server import Server
from service.core.types import DeviceName
from service.engine.device import require_device

DEVICES: tuple[DeviceName, ...] = ("cuda", "cpu")
READY_SECONDS = 600.0
TOLERANCE = 1e-3  # allowed difference of a score, as stated in service/how-it-works.md

Scores = list[list[float]]  # each query's label scores, descending


@dataclass(frozen=True, kw_only=True)
class Gpu(TwoServers):
    """One bundle, served by a GPU and by the CPU.

    The bundle's encoder must be in fp32 (`export encoder --quantize none`).
    """

    title = "Serving on a GPU"
    connections = (8, 32, 64)  # more connections give a GPU larger batches

    compared_queries: int = option(
        "Queries whose answers are compared with exact search on the CPU.", 500
    )

    def rows(self) -> Iterator[Row]:
        """Compare the answers of both servers with exact search, then the servers."""
        require_device("cuda")
        chosen = list(islice(self.texts(order=1), self.compared_queries))
        exact = exact_scores(self.bundle, chosen)
        with TemporaryDirectory() as folder, ExitStack() as stack:
            servers = {}
            for name in DEVICES:
                config = Path(folder) / f"{name}.toml"
                config.write_text(f'[engine]\ndevice = "{name}"\n')
                served = self.server("--config", str(config), ready_seconds=READY_SECONDS)
                servers[name] = server = stack.enter_context(served)
                ready = f"{server.seconds_to_ready:.1f} s"
                yield Row(what=f"start to ready, device {name}", measured=ready)
                yield tolerance_row(name, served_scores(server, chosen), exact)
            yield from self.compared(**servers)


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
