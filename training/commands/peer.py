"""`python -m training peer`: train and measure a published system by others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from service.command_line import open_console
from service.core.config import parse, toml_value
from service.core.errors import InvalidConfig
from service.core.files.atomic import refuse_existing, refuse_unwritable
from training.commands.options import MANY
from training.commands.scoring.figures import figures
from training.datasets import lf_xmc
from training.datasets.dataset import require_test_rows
from training.datasets.train_test_overlap import refuse_overlap
from training.evaluation import results
from training.peers import PEERS, load
from training.peers.measure import train_and_measure


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
    measured = train_and_measure(name, module, settings, dataset, folder=out, status=console.status)
    results.write(measured, out)
    best = measured.results[0]
    seconds = measured.training_seconds
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
