import json
from pathlib import Path

from training.datasets.samples import subdivisions


def test_labels_of_a_subdivision(tmp_path: Path) -> None:
    (tmp_path / "databases").mkdir()
    countries = [{"alpha_2": "GB", "name": "United Kingdom of ...", "common_name": "Britain"}]
    (tmp_path / "databases/iso3166-1.json").write_text(json.dumps({"3166-1": countries}))
    parts = [
        {"code": "GB-WLS", "name": "Wales", "type": "Country"},
        {"code": "GB-CRF", "name": "Cardiff", "type": "Unitary authority", "parent": "WLS"},
        {"code": "GB-SWA", "name": "Swansea", "type": "Unitary authority", "parent": "GB-WLS"},
    ]
    (tmp_path / "databases/iso3166-2.json").write_text(json.dumps({"3166-2": parts}))
    assert list(subdivisions.rows(tmp_path)) == [
        ("Wales", ["Britain", "Country"]),
        ("Cardiff", ["Britain", "Unitary authority", "Wales"]),
        ("Swansea", ["Britain", "Unitary authority", "Wales"]),
    ]
