"""Names that are read from the JSON files of packages."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidData, MissingExtra
from training.datasets.samples import names


def package(folder: Path, **files: Any) -> Path:
    """Write each file `folder__name` as JSON at folder/name.json."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def test_names_of_a_large_city(tmp_path: Path) -> None:
    large = {"population": 600_000, "alternatenames": ["Athina"], "countrycode": "GR"}
    small = {"population": 49_999, "alternatenames": [], "countrycode": "US"}
    cities = {"1": {"name": "Athens", **large}, "2": {"name": "Athens", **small}}
    countries = {"GR": {"name": "Greece"}, "US": {"name": "United States"}}
    folder = package(tmp_path, data__cities15000=cities, data__countries=countries)
    assert list(names.cities(folder)) == [
        ("Athens", ["Athens, Greece"]),
        ("Athina", ["Athens, Greece"]),
    ]


def test_emoji_without_skin_tones_and_incomplete_spellings(tmp_path: Path) -> None:
    english = {
        "🐦": {"en": ":black_bird:", "status": 2, "alias": [":raven:"]},
        "👋🏽": {"en": ":waving_hand_medium_skin_tone:", "status": 2},
        "☺": {"en": ":smiling_face:", "status": 4},
    }
    others: dict[str, Any] = {f"unicode_codes__emoji_{name}": {} for name in names.LANGUAGES}
    others["unicode_codes__emoji_de"] = dict.fromkeys(english, ":schwarzer_vogel:")
    folder = package(tmp_path, unicode_codes__emoji=english, **others)
    assert list(names.emoji(folder)) == [
        ("raven", ["black bird"]),
        ("schwarzer vogel", ["black bird"]),
    ]


def test_labels_of_a_subdivision(tmp_path: Path) -> None:
    countries = [{"alpha_2": "GB", "name": "United Kingdom of ...", "common_name": "Britain"}]
    parts = [
        {"code": "GB-WLS", "name": "Wales", "type": "Country"},
        {"code": "GB-CRF", "name": "Cardiff", "type": "Unitary authority", "parent": "WLS"},
        {"code": "GB-SWA", "name": "Swansea", "type": "Unitary authority", "parent": "GB-WLS"},
    ]
    files = {"iso3166-1": {"3166-1": countries}, "iso3166-2": {"3166-2": parts}}
    folder = package(tmp_path, **{f"databases__{name}": file for name, file in files.items()})
    assert list(names.subdivisions(folder)) == [
        ("Wales", ["Britain", "Country"]),
        ("Cardiff", ["Britain", "Unitary authority", "Wales"]),
        ("Swansea", ["Britain", "Unitary authority", "Wales"]),
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InvalidData, match=r"a\.json: is not JSON"):
        names.read_json("none", "a.json", tmp_path)
    with pytest.raises(InvalidData, match=r"b\.json: cannot be read: No such file"):
        names.read_json("none", "b.json", tmp_path)
    with pytest.raises(MissingExtra, match=r"no_such_package is not installed.*\[samples\]"):
        names.read_json("no_such_package", "a.json", None)
