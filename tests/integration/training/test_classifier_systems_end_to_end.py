"""Systems with classifiers or auxiliary vectors: from training and scores to a served bundle.

All share one first stage, are exported, and are served by one service through reloads.
"""

import shutil
from dataclasses import replace
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
from tests.support.tiny.training import (
    tiny_dataset,
    train_tiny,
    write_recipe,
    write_tiny_checkpoint,
)
from training.__main__ import app as training
from training.checkpoints.label_keys import read_label_keys
from training.datasets import lf_xmc

FIRST_STAGE = (
    "batch.order=clustered",
    "batch.cluster_size=4",
    "optimizer.steps=12",
    "optimizer.learning_rate=1e-3",
    "optimizer.head_learning_rate=0.05",
    "validation.every=12",
)
SECOND_STAGE = ("encoder.name={folder}/ngame", "encoder.frozen=true")
SYSTEMS = {  # name -> settings
    "unidec": ("system.name=unidec", "heads.encoder=16", "heads.classifier=12"),
    "ngame-classifiers": (
        *SECOND_STAGE,
        "system.name=ngame-classifiers",
        "heads.encoder=32",
        "heads.classifier=32",
        "heads.activation=none",
        "heads.dropout=0.0",
    ),
    "siamese-xml": (*SECOND_STAGE, "system.name=siamese-xml"),
    "dexa": ("system.name=dexa",),
    "renee": (
        "system.name=one-versus-all",
        "system.initial=labels",
        "system.hybrid_precision=true",
        "batch.pool=all",
    ),
}
DIMENSIONS = {"ngame-classifiers": 64, "unidec": 28}  # others: the encoder's dimension


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a bundle of each system. Label texts mislead, so learned keys are better."""
    folder = tmp_path_factory.mktemp("systems")
    tiny = tiny_dataset()
    misled = replace(tiny.labels, texts=(*tiny.labels.texts[3:], *tiny.labels.texts[:3]))
    lf_xmc.write(replace(tiny, labels=misled), folder / "data")
    write_recipe(folder, model=write_tiny_checkpoint(folder, dropout=0.0), system="ngame")
    assert train_tiny(folder, "ngame", *FIRST_STAGE) == 0
    for name, settings in SYSTEMS.items():
        given = [setting.format(folder=folder) for setting in settings]
        assert train_tiny(folder, name, *FIRST_STAGE, *given) == 0
        source = ("--encoder", folder / name / "best", "--data", folder / "data")
        bundle = ("--out", folder / "bundles" / name, "--quantize", "none", "--hold-out-test")
        assert status_of(export, "bundle", *source, *bundle) == 0
    return folder


def answers(server: ServerProcess, queries: list[str], **options: Any) -> list[list[str]]:
    body = {"queries": queries, "top_k": 5, **options}
    results = server.client.post("/predict", json=body).json()["results"]
    return [[keyword["id"] for keyword in result["keywords"]] for result in results]


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_bundle_has_the_systems_label_keys(name: str, folder: Path) -> None:
    run, facts = folder / name, manifest.read(folder / "bundles" / name)
    assert facts.encoder.dimension == DIMENSIONS.get(name, 32)
    dataset = lf_xmc.read(folder / "data")
    learned = read_label_keys(run / "best", labels=len(dataset.labels))
    assert learned is not None, "the texts of the labels were better"
    opened = open_bundle(folder / "bundles" / name)
    served = np.asarray(opened.keys[-len(learned) :], np.float32)  # label keys come last
    np.testing.assert_allclose(served, learned, atol=2e-3)


@pytest.mark.parametrize("name", SYSTEMS)
def test_scores_of_the_run_are_those_of_its_bundle(name: str, folder: Path) -> None:
    bundle, out = folder / "bundles" / name, folder / f"{name}.json"
    options = ("--memorization", 0.0, 1.0, "--json", out, "--data", folder / "data")
    assert status_of(training, "score", "--bundle", bundle, *options) == 0
    assert status_of(training, "score", "--run", folder / name, "--data", folder / "data") == 0
    scored = orjson.loads((folder / name / "results.json").read_bytes())["results"]
    depth = manifest.read(bundle).predictor.depth
    for row in orjson.loads(out.read_bytes())["rows"]:
        same = [
            result["metrics"]
            for result in scored
            if result["memorization"] == row["memorization"] and result["depth"] == depth
        ]
        assert same[0]["P@1"] == pytest.approx(row["metrics"]["P@1"])
        assert same[0]["P@5"] == pytest.approx(row["metrics"]["P@5"], abs=1.5)


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
        for name in ("later", *reversed(SYSTEMS)):  # the last one is the first bundle
            given = {"json": {"bundle": name}, "timeout": 120}
            assert server.client.post("/admin/reload", **given).status_code == 200
            assert answers(server, ["boat for one"], memorization=1.0, depth=1)[0][0] == "kayak"
            assert "oar" in answers(server, ["oar"], memorization=0.0)[0]
        assert answers(server, queries) == before
        server.kill()
    with server_process(first, state, tmp_path / "again") as again:
        assert answers(again, queries) == before
