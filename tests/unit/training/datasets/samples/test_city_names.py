import json
from pathlib import Path

from training.datasets.samples import city_names


def test_names_of_a_large_city(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    cities = {
        "1": {
            "name": "Athens",
            "countrycode": "GR",
            "population": 600_000,
            "alternatenames": ["Athina"],
        },
        "2": {"name": "Athens", "countrycode": "US", "population": 49_999, "alternatenames": []},
    }
    (tmp_path / "data/cities15000.json").write_text(json.dumps(cities))
    countries = {"GR": {"name": "Greece"}, "US": {"name": "United States"}}
    (tmp_path / "data/countries.json").write_text(json.dumps(countries))
    assert list(city_names.rows(tmp_path)) == [
        ("Athens", ["Athens, Greece"]),
        ("Athina", ["Athens, Greece"]),
    ]
