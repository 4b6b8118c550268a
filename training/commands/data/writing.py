"""Writes a data set, and says how large it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.command_line import open_console
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset

Out = Annotated[Path, Parameter(help="The folder to write; it must not exist yet.")]


def write(dataset: Dataset, out: Path) -> None:
    """Write a new folder, with a spinner."""
    with open_console(stderr=True).status("writing", spinner="dots"):
        lf_xmc.write(dataset, out)


def size_line(dataset: Dataset, out: Path) -> str:
    """The folder and its sizes, in a line."""
    items = "" if dataset.metadata is None else f", {len(dataset.metadata):,} metadata items"
    return (
        f"{out}: {len(dataset.train):,} train and {len(dataset.test):,} test rows,"
        f" {len(dataset.labels):,} labels{items}"
    )
