"""OAK is trained on predicted metadata items, guided, scored, and tested with wrong items."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import orjson
import pytest

from export.__main__ import app as export
from export.exported_encoder import FUSION, RESIDUALS, open_exported
from service.core.bundle.bundle import open_bundle
from service.core.bundle.item_files import FUSE, PROJECT
from service.core.encoding.encoder import encode
from service.core.items.fusion import OnnxFusion
from service.core.types import Role
from tests.integration.training.conftest import Runs
from tests.support.commands import status_of
from tests.support.serving import local_service
from tests.support.tiny.training import losses, tiny_dataset
from training.__main__ import app as training
from training.datasets import lf_xmc
from training.lab import robustness

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent")
GRAPHS = (f"{FUSION}/{PROJECT}", f"{FUSION}/{FUSE}")


@pytest.fixture(scope="module")
def folder(runs: Runs) -> Path:
    """Runs of an oracle, of OAK without an oracle, and of OAK that the oracle guided."""
    return runs("oracle", "oak", "oak-guided")


def chosen(folder: Path) -> dict[str, float]:
    """Read a folder of results; return the metrics of the chosen prediction."""
    found = orjson.loads((folder / "results.json").read_bytes())["results"]
    metrics: dict[str, float] = next(result for result in found if result["chosen"])["metrics"]
    return metrics


def test_an_oracle_guides_fused_queries(folder: Path) -> None:
    alone, guided = (losses(folder / name) for name in ("oak", "oak-guided"))
    assert guided[0] > alone[0] + 0.01, "two losses are added to the system's own"
    assert guided[-1] < guided[0]


def test_it_is_scored_with_predicted_and_with_linked_items(folder: Path) -> None:
    places = ("--run", folder / "oak", "--data", folder / "data")
    assert status_of(training, "score", *places) == 0
    out = folder / "oak-linked"
    assert status_of(training, "score", *places, "--items", "linked", "--out", out) == 0
    results = orjson.loads((out / "results.json").read_bytes())
    assert results["name"].endswith(", linked items")
    assert results["settings"]["items"] == "linked"
    assert chosen(folder / "oak").keys() == chosen(out).keys()


def test_wrong_items_are_measured_as_for_an_oracle(folder: Path) -> None:
    places = ("--data", folder / "data", "--out", folder / "oak-robustness")
    runs = ("--run", folder / "oak", folder / "oracle")
    assert status_of(training, "score", "--run", folder / "oak", *places[:2]) == 0
    assert status_of(training, "robustness", *runs, *places) == 0

    alone, oracle = robustness.read(folder / "oak-robustness" / robustness.FILE).runs
    assert (alone.role, alone.reads, oracle.reads) == ("oak", "items", "texts")
    assert [one.condition for one in alone.measured] == [one.condition for one in oracle.measured]
    predicted = alone.under(robustness.PREDICTED)
    assert predicted is not None
    assert predicted.mean("P@1") == chosen(folder / "oak")["P@1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--run", "oracle", "--items", "linked", "--out", "x"), "is for a run of OAK"),
        (("--run", "oak", "--items", "linked"), "goes with --run and --out"),
        (("--run", "oak", "--items", "linked", "--untrained", "--out", "x"), "--untrained"),
    ],
)
def test_options_that_do_not_fit_are_said(
    folder: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [folder / word if word in ("oracle", "oak", "x") else word for word in options]
    assert status_of(training, "score", *places, "--data", folder / "data") == 2
    assert message in capsys.readouterr().err


def test_data_without_items_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lf_xmc.write(tiny_dataset(), folder / "bare")
    places = ("--run", folder / "oak", "--data", folder / "bare")
    assert status_of(training, "score", *places) == 2
    assert "looks up metadata items, and data set colours has none" in capsys.readouterr().err
    given = ("--encoder", folder / "oak" / "best", "--data", folder / "bare")
    assert status_of(export, "encoder", *given, "--out", folder / "other") == 2
    assert "data set colours has none" in capsys.readouterr().err
    assert not (folder / "other").exists()


def test_the_exported_encoder_holds_fusion_and_bank(folder: Path) -> None:
    source = ("--encoder", folder / "oak" / "best", "--data", folder / "data")
    out = folder / "exported"
    assert status_of(export, "encoder", *source, "--out", out, "--quantize", "none") == 0

    exported, dataset = open_exported(out), lf_xmc.read(folder / "data")
    items = exported.description.items
    assert items is not None and (items.items, items.attended) == (8, 2)
    assert {*GRAPHS, RESIDUALS} <= exported.description.files.keys()
    keys = encode(exported.open_encoder(), dataset.metadata.texts, role=Role.LABEL)
    queries = encode(exported.open_encoder(), dataset.test.instances.texts, role=Role.QUERY)
    from training.systems.oak.memory import read_item_memory

    memory = read_item_memory(folder / "oak" / "best", keys)
    places = memory.predicted(queries)
    values = keys + np.load(out / RESIDUALS).astype(np.float32)
    fusion = OnnxFusion(out / FUSION)
    projected = fusion.project(values.astype(np.float16))
    fused = [
        fusion.fuse(query, projected[attended])
        for query, attended in zip(queries, places, strict=True)
    ]
    np.testing.assert_allclose(fused, memory.fused(queries), atol=1e-3)  # item vectors are in fp16


def test_served_answers_are_those_of_the_evaluation(folder: Path, tmp_path: Path) -> None:
    bundle, dataset = folder / "bundles" / "served", lf_xmc.read(folder / "data")
    given = ("--encoder", folder / "oak" / "best", "--data", folder / "data")
    assert status_of(export, "bundle", *given, "--quantize", "none", "--out", bundle) == 0
    measured = tmp_path / "evaluation.json"
    options = ("--memorization", "0.5", "--json", measured)
    places = ("--bundle", bundle, "--data", folder / "data")
    assert status_of(training, "score", *places, *options) == 0
    [row] = orjson.loads(measured.read_bytes())["rows"]
    linked = tmp_path / "linked.json"
    options = ("--memorization", "0.5", "--json", linked, "--items", "linked")
    assert status_of(training, "score", *places, *options) == 0
    assert orjson.loads(linked.read_bytes())["items"] == "linked"
    assert orjson.loads(linked.read_bytes())["rows"] != [row]

    with local_service(bundle, tmp_path / "state") as service:
        body = {"queries": list(dataset.test.instances.texts), "top_k": 1, "memorization": 0.5}
        results = service.post("/predict", body).json()["results"]
        named = service.post("/predict", {**body, "items": [dataset.metadata.uids[0]]}).json()
    first = [dataset.labels.uids.index(result["keywords"][0]["id"]) for result in results]
    right = [dataset.test.labels_of[query, label] > 0 for query, label in enumerate(first)]
    assert 100 * np.mean(right) == pytest.approx(row["metrics"]["P@1"])
    assert [result["keywords"][0]["score"] for result in results] != [
        result["keywords"][0]["score"] for result in named["results"]
    ]


@pytest.mark.parametrize("source", ["oak/best", "exported"])
def test_a_bundle_holds_items_and_fused_instances(folder: Path, source: str) -> None:
    from training.systems.oak.memory import read_item_memory

    given = ("--encoder", folder / source, "--data", folder / "data")
    exact = ("--quantize", "none") if source == "oak/best" else ()
    out = folder / "bundles" / source.replace("/", "-")
    assert status_of(export, "bundle", *given, *exact, "--out", out) == 0

    bundle, dataset = open_bundle(out), lf_xmc.read(folder / "data")
    assert bundle.items is not None and dataset.metadata is not None
    assert tuple(bundle.items.ids) == dataset.metadata.uids
    assert tuple(bundle.items.texts) == dataset.metadata.texts
    encoder = open_exported(folder / "exported").open_encoder()
    memory = read_item_memory(
        folder / "oak" / "best", encode(encoder, dataset.metadata.texts, role=Role.LABEL)
    )
    vectors = encode(encoder, dataset.train.instances.texts, role=Role.QUERY)
    np.testing.assert_allclose(bundle.keys[:48], memory.fused(vectors), atol=4e-3)  # fp16 keys
