"""Names of provinces, districts, ... and their country and kind: few rows, two or three labels.

From the PyPI package `pycountry` (ISO 3166-2 of Debian's iso-codes). A row is a subdivision's name;
its labels are the country, the kind ("Province") and, where there is one, what it is a part of.
4,891 rows, 515 labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from training.datasets.samples.build import read_json


def rows(folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield (a name, its labels); `folder` is that of the package, or it must be installed."""
    entries = read_json("pycountry", "databases/iso3166-1.json", folder)["3166-1"]
    countries = {entry["alpha_2"]: entry.get("common_name", entry["name"]) for entry in entries}
    parts = read_json("pycountry", "databases/iso3166-2.json", folder)["3166-2"]
    names = {part["code"]: part["name"] for part in parts}
    for part in parts:
        country, _, _ = part["code"].partition("-")
        labels = [countries[country], part["type"]]
        parent = part.get("parent", "")
        # The file names a parent with or without its country's code.
        known = names.get(parent) or names.get(f"{country}-{parent}")
        yield part["name"], [*labels, known] if known else labels
