"""`python -m training peer`: a system of others, trained and measured on a data set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from service.core.config import parse, toml_value
from service.core.errors import InvalidConfig
from service.core.files.atomic import refuse_existing
from training.commands.options import MANY
from training.datasets import lf_xmc
from training.datasets.train_test_overlap import refuse_overlap
from training.evaluation import results
from training.evaluation.results import Results, rows_of_chosen
from training.hardware import machine
from training.peers import PEERS, load
from training.peers.material import material

SHOWN = ("P@1", "P@5", "R@100", "PSP@5")


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
        The results' folder; one that holds results already is refused.
    set
        Settings of the peer to replace, as key=value.
    allow_test_rows
        Train also where a training row's text stands in the test split.
    """
    chosen = load(name)
    settings = parse(chosen.Settings, assignments(set), source=f"peer {name}")
    refuse_existing(out / results.FILE)
    dataset = lf_xmc.read(data)
    if not allow_test_rows:
        refuse_overlap(dataset, data)
    console = Console()
    with console.status(f"training {name}"):
        started = time.perf_counter()
        trained = chosen.train(material(dataset), settings, folder=out)
        seconds = time.perf_counter() - started
    with console.status(f"ranking with {name}"):
        found = trained.measure(dataset)
    results.write(
        Results(
            name=name,
            system=PEERS[name].system,
            dataset=dataset.name,
            propensity={"a": dataset.propensity.a, "b": dataset.propensity.b},
            results=tuple(result for result, _ in found),
            rows=rows_of_chosen(found),
            held_out_rows=trained.held_out_rows,
            training_seconds=seconds,
            settings=asdict(settings),
            hardware=machine(libraries=trained.libraries, device=trained.device),
        ),
        out,
    )
    best = found[0][0]
    shown = ", ".join(f"{metric} {best.metrics[metric]:.2f}" for metric in SHOWN)
    console.print(
        f"{out}: {name} by {best.method}, trained in {seconds:,.0f} s: {shown}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` as a document; raises `InvalidConfig` for what is no assignment."""
    document: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise InvalidConfig(f"--set takes key=value, not {pair!r}")
        document[key] = toml_value(text)
    return document
