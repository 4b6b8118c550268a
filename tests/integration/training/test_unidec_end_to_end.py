"""UniDEC from training to a served bundle that takes live labels, snapshots, and is replaced."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from service.core.bundle import manifest
from tests.support.commands import run, status_of
from tests.support.serving import ServerProcess, server_process
from tests.support.tiny.unidec import write_unidec_recipe
from training.__main__ import app as training
from training.datasets import lf_xmc

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set with a bundle of UniDEC, and one of the encoder that it started from."""
    from tests.support.tiny.training import tiny_dataset, write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("unidec")
    lf_xmc.write(tiny_dataset(), folder / "data")
    model = write_tiny_checkpoint(folder, dropout=0.0)
    recipe = write_unidec_recipe(folder, model=model)
    places = ("--data", folder / "data", "--out", folder / "run")
    assert status_of(training, "train", recipe, *places) == 0
    for name, encoder in (("unidec", folder / "run" / "best"), ("plain", model)):
        source = ("--encoder", encoder, "--data", folder / "data", "--quantize", "none")
        ended = run("export", "bundle", *source, "--out", folder / "bundles" / name, seconds=300)
        assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    shutil.copytree(folder / "bundles", tmp_path / "bundles")
    places = (tmp_path / "bundles/unidec", tmp_path / "state", tmp_path / "log")
    with server_process(*places) as server:
        yield server


def answers(server: ServerProcess, queries: list[str], **options: Any) -> list[list[str]]:
    body = {"queries": queries, "top_k": 5, **options}
    results = server.client.post("/predict", json=body).json()["results"]
    return [[keyword["id"] for keyword in result["keywords"]] for result in results]


def test_the_bundle_has_both_heads_and_the_settings_of_novel_labels(folder: Path) -> None:
    facts = manifest.read(folder / "bundles/unidec")
    assert facts.encoder.dimension == 28
    assert manifest.read(folder / "bundles/plain").encoder.dimension == 32
    has_settings = (folder / "run/best/novel.json").is_file()
    assert (facts.novel is not None) == has_settings


def test_served_answers_are_those_of_the_evaluation(
    folder: Path, server: ServerProcess, tmp_path: Path
) -> None:
    lambdas = (0.0, 0.4, 1.0)
    places = ("--bundle", folder / "bundles/unidec", "--data", folder / "data")
    options = ("--memorization", *lambdas, "--json", tmp_path / "evaluation.json")
    assert status_of(training, "evaluate", *places, *options) == 0
    measured = orjson.loads((tmp_path / "evaluation.json").read_bytes())["rows"]
    dataset = lf_xmc.read(folder / "data")
    truth = dataset.test.labels_of.toarray() != 0
    for memorization, row in zip(lambdas, measured, strict=True):
        served = answers(server, list(dataset.test.instances.texts), memorization=memorization)
        columns = [dataset.labels.uids.index(keywords[0]) for keywords in served]
        right = truth[np.arange(len(columns)), columns]
        assert 100 * right.mean() == pytest.approx(row["metrics"]["P@1"])


def test_a_live_label_is_answered_kept_and_carried_over(
    server: ServerProcess, tmp_path: Path
) -> None:
    label = {"id": "kayak", "text": "sea kayak", "queries": ["boat for one"]}
    labels = {"labels": [label, {"text": "oar"}]}
    assert server.client.post("/labels", json=labels).status_code == 200
    assert answers(server, ["boat for one"], memorization=1.0, depth=1)[0][0] == "kayak"
    assert answers(server, ["oar"], memorization=0.0, depth=1)[0][0] == "oar"
    before = answers(server, ["red tent", "boat for one", "oar"])

    written = server.client.post("/admin/snapshot", json={"bundle": "later"})
    assert written.status_code == 200, written.text
    for bundle in ("later", "plain", "unidec"):
        answer = server.client.post("/admin/reload", json={"bundle": bundle}, timeout=120)
        assert answer.status_code == 200, answer.text
        assert answers(server, ["boat for one"], memorization=1.0, depth=1)[0][0] == "kayak"
    assert answers(server, ["red tent", "boat for one", "oar"]) == before

    server.kill()
    places = (tmp_path / "bundles/unidec", tmp_path / "state", tmp_path / "again")
    with server_process(*places) as again:
        assert answers(again, ["red tent", "boat for one", "oar"]) == before
