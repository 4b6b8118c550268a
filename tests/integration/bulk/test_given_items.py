"""`keymatch predict --items-column` answers like a server that is given the same items."""

import csv
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from service.__main__ import app
from tests.support.commands import Refused, status_of
from tests.support.serving import local_service
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

ROWS = [("tent", "camp"), ("tent", ""), ("warm boots", "feet|a good axe"), ("tent", "water|axe")]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "with-items", items=ITEMS)


@pytest.fixture
def predict(bundle: Path, tmp_path: Path) -> Callable[..., list[object]]:
    """`predict(rows, *options)` writes a table and returns the command for it."""

    def command(
        rows: list[tuple[str, str]], *options: object, bundle: Path = bundle
    ) -> list[object]:
        with (tmp_path / "in.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("query", "tags"), *rows])
        places = ("--bundle", bundle, "--input", tmp_path / "in.csv", "--query", "query")
        return ["predict", *places, "--out", tmp_path / "out.jsonl", *options]

    return command


def test_answers_are_those_of_a_server(
    bundle: Path, predict: Callable[..., list[object]], tmp_path: Path
) -> None:
    expected = []
    with local_service(bundle, tmp_path / "state") as service:
        service.post("/items", {"items": [{"id": "axe", "text": "a good axe"}]})
        service.request("DELETE", "/items/light")
        for query, cell in ROWS:
            given = cell.split("|") if cell else None
            asked = {"queries": [query], "items": given, "explain": True}
            expected += service.post("/predict", asked).json()["results"]
    options = ("--state", tmp_path / "state", "--items-column", "tags", "--explain")
    assert status_of(app, *predict(ROWS, *options)) == 0
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == expected
    assert expected[0] != expected[1] != expected[3]
    assert all("items" in result for result in expected)


def test_an_unknown_item_stops_it_before_anything_is_answered(
    predict: Callable[..., list[object]], refused: Refused, tmp_path: Path
) -> None:
    rows = [*ROWS[:1], ("tent", "camp|axe")]
    assert refused(app, *predict(rows, "--items-column", "tags")) == (
        f"{tmp_path}/in.csv:3: tags: no item has the id or text 'axe'; correct the row, or pass"
        " --on-bad-row skip to leave it unanswered"
    )
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
    skip = ("--items-column", "tags", "--on-bad-row", "skip")
    assert status_of(app, *predict(rows, *skip)) == 0
    _, last = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert orjson.loads(last)["problem"] == "no item has the id or text 'axe'"


def test_a_bundle_without_items_and_a_missing_column_are_said(
    tiny_bundle_folder: Path, predict: Callable[..., list[object]], refused: Refused
) -> None:
    said = refused(app, *predict(ROWS, "--items-column", "kind"))
    assert "no such column; the columns are query, tags" in said
    said = refused(app, *predict(ROWS, "--items-column", "tags", bundle=tiny_bundle_folder))
    assert "--items-column tags: the bundle tiny has no item memory" in said
