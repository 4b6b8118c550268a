"""A further option of a query, or field of a label, is one declaration and the code that uses it.

In a copy of the service, the toy option `backwards` reads queries from their end, and labels have
the toy field `note`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.child_server import running_server

ROOT = Path(__file__).parents[3]
DECLARATION = """
    backwards: bool = option(
        False, "Read queries from their end.", cost=lambda asked: 50 * asked.backwards
    )
"""
STAGE = """
_read = Predictor.read


def _turned(self, view, queries, options, watch):
    queries = [query[::-1] for query in queries] if options.backwards else queries
    return _read(self, view, queries, options, watch)


Predictor.read = _turned
"""
BULK = """
from service.bulk.run import stored_options
from service.core.options import PredictOptions
from service.engine.reading.task_queue import query_cost

options = PredictOptions(backwards=True)
assert stored_options(options)["backwards"]
assert query_cost(options) > 10 * query_cost(PredictOptions())
"""

FIELD = """
    note: str = fact(
        "",
        "What the shop notes.",
        changed="Replaces the note.",
        answered="As posted.",
        kind=str,
        sparse=True,
    )
"""
STORES = """
import numpy as np

from service.core.bundle.label_details import Details, dump, parse
from service.core.changes import ChangeLabel, PutLabel
from service.core.types import Event, NewLabel

assert parse(dump(Details(note="fragile"))).note == "fragile"
label = NewLabel(id="a", text="a", note="fragile")
put = PutLabel(sequence=1, label=label, vectors=np.zeros((1, 2), np.float16))
read = PutLabel.from_event(Event(sequence=1, kind=put.kind, body=put.body()), lambda _: put.vectors)
assert read.label == label
change = ChangeLabel.of(label, sequence=2, id="a")
assert ChangeLabel.from_event(Event(sequence=2, kind=change.kind, body=change.body())) == change
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the service, the toy option and the toy field."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "service", folder / "service", ignore=ignored)
    declared = folder / "service/core/options.py"
    before, last, after = declared.read_text().partition("    exact: bool = False")
    declared.write_text(f"{before}{DECLARATION}{last}{after}")
    declared = folder / "service/core/label.py"
    before, first, after = declared.read_text().partition("    boost: float = fact(")
    declared.write_text(f"{before}{FIELD}{first}{after}")
    with (folder / "service/core/prediction/predictor.py").open("a") as stage:
        stage.write(STAGE)
    return folder


@pytest.fixture(scope="module")
def client(copy: Path, tiny_bundle_folder: Path) -> Iterator[httpx.Client]:
    with (
        running_server(tiny_bundle_folder, checkout=copy) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


def in_copy(copy: Path, *arguments: object) -> str:
    """Run Python with these arguments in the copy, and return what it prints."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=copy,
        env={**os.environ, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_requests_have_the_option(client: httpx.Client) -> None:
    for asked, read in (({}, "tent"), ({"backwards": True}, "tnet")):
        answer = client.post("/predict", json={"queries": ["tent"], **asked}).json()
        assert [result["query"] for result in answer["results"]] == [read]
    refused = client.post("/predict", json={"queries": ["tent"], "backwards": "yes"}).json()
    assert [error["field"] for error in refused["errors"]] == ["backwards"]
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    described = schemas["PredictRequest"]["properties"]["backwards"]
    assert described["description"] == "Read queries from their end."


def test_the_command_and_its_jobs_have_the_option(copy: Path, tiny_bundle_folder: Path) -> None:
    (copy / "queries.txt").write_text("tent\n")
    places = ("--bundle", tiny_bundle_folder, "--input", "queries.txt", "--out", "out.jsonl")
    in_copy(copy, "-m", "service", "predict", *places, "--backwards")
    [answer] = map(json.loads, (copy / "out.jsonl").read_text().splitlines())
    assert answer["query"] == "tnet"
    shown = in_copy(copy, "-m", "service", "predict", "--help")
    assert "--backwards" in shown
    assert "Read queries from their end." in shown
    in_copy(copy, "-c", BULK)


def test_labels_have_the_field(copy: Path, client: httpx.Client) -> None:
    client.post("/labels", json={"labels": [{"id": "vase", "text": "vase", "note": "fragile"}]})
    assert client.get("/labels/vase").json()["note"] == "fragile"
    client.patch("/labels/vase", json={"boost": 2.0})
    assert client.get("/labels/vase").json()["note"] == "fragile"
    client.patch("/labels/vase", json={"note": "sold"})
    shown = client.get("/labels/vase").json()
    assert (shown["note"], shown["boost"]) == ("sold", 2.0)
    refused = client.patch("/labels/vase", json={"note": 7}).json()
    assert [error["field"] for error in refused["errors"]] == ["note"]
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    described = [
        schemas[name]["properties"]["note"]["description"] for name in ("Label", "LabelMerge")
    ]
    assert described == ["What the shop notes.", "Replaces the note."]
    in_copy(copy, "-c", STORES)
