"""Serve, learn, write the log as a data set, export it, and serve the new bundle."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from export.__main__ import app as export
from service.core.bundle import manifest
from tests.support.commands import Refused, status_of
from tests.support.serving import ServerProcess, server_process
from training.__main__ import app as training
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Split

ENCODER = Path(__file__).parents[3] / "deploy/demo/encoder"
THINGS = "tent boots lamp stove bottle jacket rope knife".split()
KINDS = "red green blue small large cheap".split()


def done(app: App, *arguments: object) -> None:
    assert status_of(app, *arguments) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 48 queries, and its bundle."""
    folder = tmp_path_factory.mktemp("circle")
    rows = [f"{kind} {thing},{thing}" for thing in THINGS for kind in KINDS]
    (folder / "clicks.csv").write_text("\n".join(["query,label", *rows]) + "\n")
    table = ("--input", folder / "clicks.csv", "--query", "query", "--label", "label")
    done(training, "data", "pairs", *table, "--out", folder / "data")
    source = ("--encoder", ENCODER, "--data", folder / "data")
    done(export, "bundle", *source, "--out", folder / "bundles/first")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with server_process(folder / "bundles/first", folder / "state", folder / "log") as server:
        learn(server)
        yield server


def learn(server: ServerProcess) -> None:
    kayak = {"id": "kayak", "text": "sea kayak", "queries": ["boat for one"]}
    labels = [kayak, {"id": "oar", "text": "oar", "metadata": {"brand": "acme"}}, {"text": "gone"}]
    assert server.client.post("/labels", json={"labels": labels}).status_code == 200
    for query, ids in (("paddling", ["kayak"]), ("paddling", ["kayak", "oar"]), ("dusk", ["lamp"])):
        instances = {"instances": [{"query": query, "labels": ids}]}
        assert server.client.post("/instances", json=instances).status_code == 200
    for label in ("gone", "knife"):
        assert server.client.delete(f"/labels/{label}").status_code == 200


def weights(split: Split, dataset: Dataset, query: str) -> dict[str, float]:
    row = split.labels_of[split.instances.texts.index(query)]
    ids = [dataset.labels.uids[column] for column in row.indices]
    return dict(zip(ids, row.data.tolist(), strict=True))


def keywords(server: ServerProcess, query: str) -> list[str]:
    answer = server.client.post("/predict", json={"queries": [query], "top_k": 3})
    return [keyword["id"] for keyword in answer.json()["results"][0]["keywords"]]


def test_what_was_learned_is_trained_on_exported_and_served(
    folder: Path, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ("--bundle", folder / "bundles/first", "--state", folder / "state")
    done(training, "data", "log", *places, "--data", folder / "data", "--out", folder / "next")
    said = capsys.readouterr().out
    assert "3 labels posted, 2 deletions, 3 clicks" in said
    assert "9 labels, 2 of them new" in said
    assert "metadata" in said
    first, learned = lf_xmc.read(folder / "data"), lf_xmc.read(folder / "next")
    assert weights(learned.train, learned, "paddling") == {"kayak": 2.0, "oar": 1.0}
    assert weights(learned.train, learned, "boat for one") == {"kayak": 1.0}
    assert set(learned.test.instances.texts) <= set(first.test.instances.texts)

    source = ("--encoder", ENCODER, "--data", folder / "next")
    done(export, "bundle", *source, "--out", folder / "bundles/second")
    facts = manifest.read(folder / "bundles/second").learned
    assert facts == learned.learned
    before = server.client.get("/labels/kayak").json()
    assert server.client.post("/admin/reload", json={"bundle": "second"}).status_code == 200
    assert server.client.get("/info").json()["bundle"]["name"] == "second"
    assert keywords(server, "paddling")[0] == "kayak"
    assert server.client.get("/labels/kayak").json()["queries"] == before["queries"]
    assert server.client.get("/labels/oar").json()["metadata"] == {"brand": "acme"}
    for label in ("gone", "knife"):
        assert server.client.get(f"/labels/{label}").status_code == 404

    again = ("--bundle", folder / "bundles/second", "--state", folder / "state")
    done(training, "data", "log", *again, "--data", folder / "next", "--out", folder / "third")
    third = lf_xmc.read(folder / "third")
    assert weights(third.train, third, "paddling") == {"kayak": 2.0, "oar": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--since", "yesterday"), "--since must be a date or time"),
        (("--test-since", "1", "--test-fraction", "0.1"), "--test-fraction cannot stand beside"),
        (("--test-fraction", "1"), "must be at least 0 and below 1"),
        (("--test-since", "2999-01-01"), "no query is left for the test split"),
        (("--state", "nowhere"), "nowhere"),
        (("--bundle", "nowhere"), "is not a bundle"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    refused: Refused,
    folder: Path,
    server: ServerProcess,
    options: tuple[str, ...],
    message: str,
) -> None:
    given = {"--bundle": folder / "bundles/first", "--state": folder / "state"}
    places = [part for name in given if name not in options for part in (name, given[name])]
    out = folder / "refused"
    assert message in refused(training, "data", "log", *places, *options, "--out", out)
    assert not out.exists()
