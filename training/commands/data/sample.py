"""`python -m training data sample`: writes one of the data sets that measure `fit`."""

from __future__ import annotations

from pathlib import Path

from service.command_line import open_console
from service.core.files.atomic import refuse_existing, refuse_unwritable
from training.commands.data.writing import Out, size_line, write
from training.datasets.samples import load_sample


def sample(name: str, /, *, out: Out, source: Path | None = None) -> None:
    """Write a data set for measuring `fit`, made from a package of a public registry.

    Parameters
    ----------
    name
        city-names, debian-depends, debian-tags, definitions, emoji-names or subdivisions.
    source
        What to read: a Debian file Packages for debian-depends and debian-tags, the folder of
        WordNet's data files for definitions; for the others the folder of their Python package,
        where it is not installed.
    """
    refuse_existing(out)
    refuse_unwritable(out)
    dataset = load_sample(name, source)
    write(dataset, out)
    open_console().print(size_line(dataset, out), soft_wrap=True)
