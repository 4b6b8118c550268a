"""Systems with classifiers or auxiliary vectors: from training and scores to a served bundle.

All share one first stage, are exported, and are served by one service through reloads.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from export.__main__ import app as export
from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from tests.support.commands import status_of
from tests.support.serving import ServerProcess, server_process
from training.__main__ import app as training
from training.checkpoints.label_keys import read_label_keys
from training.datasets import lf_xmc

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")

FIRST_STAGE = """
[encoder]
name = "{model}"
[batch]
instances = 16
positives = 2
order = "clustered"
cluster_size = 4
[optimizer]
steps = 12
learning_rate = 1e-3
head_learning_rate = 0.05
precision = "fp32"
[validation]
rows = 8
every = 12
[system]
name = "ngame"
"""
FROZEN = """
extends = "ngame.toml"
[encoder]
stage_one = "ngame.toml"
frozen = true
"""
RECIPES = {
    "unidec": 'extends = "ngame.toml"\n[heads]\nencoder = 16\nclassifier = 12\n'
    + '[system]\nname = "unidec"\n',
    "ngame-classifiers": FROZEN
    + '[heads]\nencoder = 32\nclassifier = 32\nactivation = "none"\ndropout = 0.0\n'
    + '[system]\nname = "ngame-classifiers"\n',
    "siamese-xml": FROZEN + '[system]\nname = "siamese-xml"\n',
    "dexa": 'extends = "ngame.toml"\n[system]\nname = "dexa"\n',
    "renee": 'extends = "ngame.toml"\n[batch]\npool = "all"\n'
    + '[system]\nname = "one-versus-all"\ninitial = "labels"\nhybrid_precision = true\n',
}
DIMENSIONS = {"ngame-classifiers": 64, "unidec": 28}  # others: the encoder's dimension
LAMBDAS = (0.0, 0.4, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a bundle of each system. Label texts mislead, so learned keys are better."""
    from tests.support.tiny.training import tiny_dataset, write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("systems")
    data = folder / "data"
    tiny = tiny_dataset()
    misled = replace(tiny.labels, texts=(*tiny.labels.texts[3:], *tiny.labels.texts[:3]))
    lf_xmc.write(replace(tiny, labels=misled), data)
    model = write_tiny_checkpoint(folder, dropout=0.0)
    (folder / "ngame.toml").write_text(FIRST_STAGE.format(model=model))
    first: tuple[object, ...] = ()  # the first system that needs it trains the first stage
    for name, recipe in RECIPES.items():
        path, run = folder / f"{name}.toml", folder / "runs" / name
        path.write_text(recipe)
        assert status_of(training, "train", path, "--data", data, "--out", run, *first) == 0
        if (run / "encoder").is_dir():
            first = ("--encoder", run / "encoder" / "best")
        bundle = ("--data", data, "--out", folder / "bundles" / name, "--quantize", "none")
        assert status_of(export, "bundle", "--encoder", run / "best", *bundle) == 0
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    places = (folder / "bundles/dexa", folder / "state", folder / "log")
    with server_process(*places) as server:
        yield server


def reload(server: ServerProcess, bundle: str) -> None:
    answer = server.client.post("/admin/reload", json={"bundle": bundle}, timeout=120)
    assert answer.status_code == 200, answer.text


def answers(server: ServerProcess, queries: list[str], **options: Any) -> list[list[str]]:
    body = {"queries": queries, "top_k": 5, **options}
    results = server.client.post("/predict", json=body).json()["results"]
    return [[keyword["id"] for keyword in result["keywords"]] for result in results]


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of `evaluate` for each bundle at each lambda."""
    tables = {}
    for name in RECIPES:
        out = folder / f"{name}.json"
        places = ("--bundle", folder / "bundles" / name, "--data", folder / "data")
        options = ("--memorization", *LAMBDAS, "--json", out)
        assert status_of(training, "score", *places, *options) == 0
        tables[name] = orjson.loads(out.read_bytes())["rows"]
    return tables


@pytest.mark.parametrize("name", RECIPES)
def test_the_bundle_has_the_systems_label_keys(name: str, folder: Path) -> None:
    run, facts = folder / "runs" / name, manifest.read(folder / "bundles" / name)
    assert facts.encoder.dimension == DIMENSIONS.get(name, 32)
    dataset = lf_xmc.read(folder / "data")
    learned = read_label_keys(run / "best", labels=len(dataset.labels))
    assert learned is not None, "the texts of the labels were better"
    opened = open_bundle(folder / "bundles" / name)
    served = np.asarray(opened.keys[-len(learned) :], np.float32)  # label keys come last
    np.testing.assert_allclose(served, learned, atol=2e-3)


@pytest.mark.parametrize("name", RECIPES)
def test_scores_of_the_run_are_those_of_its_bundle(
    name: str, folder: Path, measured: dict[str, list[dict[str, Any]]]
) -> None:
    run = folder / "runs" / name
    assert status_of(training, "score", "--run", run, "--data", folder / "data") == 0
    scored = orjson.loads((run / "results.json").read_bytes())["results"]
    depth = manifest.read(folder / "bundles" / name).predictor.depth
    for row in (measured[name][0], measured[name][2]):
        same = [
            result["metrics"]
            for result in scored
            if result["memorization"] == row["memorization"] and result["depth"] == depth
        ]
        assert same[0]["P@1"] == pytest.approx(row["metrics"]["P@1"])
        assert same[0]["P@5"] == pytest.approx(row["metrics"]["P@5"], abs=1.5)


@pytest.mark.parametrize("name", RECIPES)
def test_served_answers_are_those_of_the_evaluation(
    name: str,
    folder: Path,
    server: ServerProcess,
    measured: dict[str, list[dict[str, Any]]],
) -> None:
    reload(server, name)
    dataset = lf_xmc.read(folder / "data")
    truth = dataset.test.labels_of.toarray() != 0
    for memorization, row in zip(LAMBDAS, measured[name], strict=True):
        served = answers(server, list(dataset.test.instances.texts), memorization=memorization)
        columns = [dataset.labels.uids.index(keywords[0]) for keywords in served]
        right = truth[np.arange(len(columns)), columns]
        assert 100 * right.mean() == pytest.approx(row["metrics"]["P@1"])


def test_a_live_label_is_answered_kept_and_carried_over(folder: Path, tmp_path: Path) -> None:
    """Every system, a snapshot, and the first system after a restart answer it."""
    shutil.copytree(folder / "bundles", tmp_path / "bundles")
    first, state = tmp_path / "bundles/unidec", tmp_path / "state"
    queries = ["red tent", "boat for one", "oar"]
    with server_process(first, state, tmp_path / "log") as server:
        label = {"id": "kayak", "text": "sea kayak", "queries": ["boat for one"]}
        posted = {"labels": [label, {"id": "oar", "text": "oar"}]}
        assert server.client.post("/labels", json=posted).status_code == 200
        before = answers(server, queries)
        written = server.client.post("/admin/snapshot", json={"bundle": "later"})
        assert written.status_code == 200, written.text
        for name in ("later", *reversed(RECIPES)):  # the last one is the first bundle
            reload(server, name)
            assert answers(server, ["boat for one"], memorization=1.0, depth=1)[0][0] == "kayak"
            assert "oar" in answers(server, ["oar"], memorization=0.0)[0]
        assert answers(server, queries) == before
        server.kill()
    with server_process(first, state, tmp_path / "again") as again:
        assert answers(again, queries) == before
