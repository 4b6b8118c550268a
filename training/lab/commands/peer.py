"""`keymatch lab peer`: trains and measures a system that others published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from service.command_line import open_console
from service.core.config import parse, toml_value
from service.core.errors import InvalidConfig
from service.core.files.atomic import refuse_existing, refuse_unwritable
from training.commands.options import MANY, figures
from training.datasets import lf_xmc
from training.datasets.dataset import require_test_rows
from training.datasets.train_test_split import refuse_overlap
from training.evaluation import results
from training.evaluation.results import Results, rows_of_chosen
from training.hardware import machine
from training.lab.peers import PEERS, load, peer_training_data


def peer(
    name: Annotated[str, Parameter(help=f"One of {', '.join(PEERS)}.")],
    /,
    *,
    data: Path,
    out: Path,
    set: Annotated[tuple[str, ...], MANY] = (),
    allow_test_rows: bool = False,
) -> None:
    """Train a peer on the train split and measure it on the test rows, as `score` does.

    Writes results.json and rows.npz.

    Parameters
    ----------
    data
        The data set's folder.
    out
        Folder for the results; it must not hold results yet.
    set
        Settings of the peer to change, as key=value.
    allow_test_rows
        Train even if a text of the train split is also in the test split.
    """
    module = load(name)
    settings = parse(module.Settings, assignments(set), source=f"peer {name}")
    refuse_existing(out / results.FILE)
    refuse_unwritable(out)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    if not allow_test_rows:
        refuse_overlap(dataset, data)
    console = open_console()
    with console.status(f"training {name}"):
        started = time.perf_counter()
        trained = module.train(peer_training_data(dataset), settings, folder=out)
        seconds = time.perf_counter() - started
    with console.status(f"ranking with {name}"):
        ranked = trained.measure(dataset)
    best = ranked[0][0]
    measured = Results(
        name=name,
        system=PEERS[name].system,
        dataset=dataset.name,
        propensity=asdict(dataset.propensity),
        results=tuple(result for result, _ in ranked),
        rows=rows_of_chosen(ranked),
        held_out_rows=trained.held_out_rows,
        training_seconds=seconds,
        settings=asdict(settings),
        hardware=machine(libraries=trained.libraries, device=trained.device),
    )
    results.write(measured, out)
    console.print(
        f"{out}: {name} by {best.method}, trained in {seconds:,.0f} s: {figures(best.metrics)}",
        soft_wrap=True,
    )


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """The values by key; raises `InvalidConfig` for a text that is not key=value."""
    document: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise InvalidConfig(f"--set takes key=value, not {pair!r}")
        document[key] = toml_value(text)
    return document
