"""Train a peer on a data set and measure it on the test rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.datasets.dataset import Dataset
from training.evaluation.results import Results, rows_of_chosen
from training.hardware import machine
from training.peers import PEERS, PeerModule
from training.peers.training_data import peer_training_data


def train_and_measure(
    name: str,
    module: PeerModule,
    settings: Any,
    dataset: Dataset,
    *,
    folder: Path,
    status: Callable[[str], AbstractContextManager[Any]],
) -> Results:
    """Train a peer of `PEERS` with `settings`; its first result is the chosen one.

    `folder` is where a model may be kept; `status` shows a text while a step runs.
    """
    with status(f"training {name}"):
        started = time.perf_counter()
        trained = module.train(peer_training_data(dataset), settings, folder=folder)
        seconds = time.perf_counter() - started
    with status(f"ranking with {name}"):
        measured = trained.measure(dataset)
    return Results(
        name=name,
        system=PEERS[name].system,
        dataset=dataset.name,
        propensity={"a": dataset.propensity.a, "b": dataset.propensity.b},
        results=tuple(result for result, _ in measured),
        rows=rows_of_chosen(measured),
        held_out_rows=trained.held_out_rows,
        training_seconds=seconds,
        settings=asdict(settings),
        hardware=machine(libraries=trained.libraries, device=trained.device),
    )
