"""MOGIC: an oracle reads metadata and guides a disciple that does not; only disciples are exported.

With the same recipe, an oracle is a BERT or a causal language model with LoRA. One of the disciples
is OAK; test_end_to_end.py compares its served answers.
"""

from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file

from export.__main__ import app as export
from export.exported_encoder import FUSION, RESIDUALS, open_exported
from service.core.bundle.bundle import open_bundle
from service.core.bundle.item_files import FUSE, PROJECT
from service.core.encoding.encoder import encode
from service.core.items.fusion import OnnxFusion
from service.core.types import Role
from tests.integration.training.conftest import Runs
from tests.support.commands import status_of
from tests.support.tiny.training import last_weights, losses, tiny_dataset
from training.__main__ import app as training
from training.checkpoints.run_json import LAST, read_run
from training.datasets import lf_xmc
from training.evaluation import results
from training.systems.oak.memory import read_item_memory

GRAPHS = (f"{FUSION}/{PROJECT}", f"{FUSION}/{FUSE}")


@pytest.fixture(scope="module")
def folder(runs: Runs) -> Path:
    """Two oracles, the disciples that they guided, and the same systems without an oracle."""
    by_language_model = ("language-model", "guided-by-language-model")
    return runs("oracle", "alone", "guided", *by_language_model, "oak", "oak-guided")


@pytest.mark.parametrize(
    ("without", "name"),
    [("alone", "guided"), ("alone", "guided-by-language-model"), ("oak", "oak-guided")],
)
def test_the_oracle_guides_the_disciple(without: str, name: str, folder: Path) -> None:
    alone, guided = (losses(folder / run) for run in (without, name))
    assert guided[0] > alone[0] + 0.01, "two losses are added to the system's own"
    assert guided[-1] < guided[0]

    one, other = (load_file(folder / run / "best" / "model.safetensors") for run in (without, name))
    assert any(not np.array_equal(one[weight], other[weight]) for weight in one)


def test_a_language_model_learns_by_its_adapters_alone(folder: Path) -> None:
    run = folder / "language-model"
    of_steps = losses(run)
    assert of_steps[-1] < 0.8 * of_steps[0]
    learned = [name for name in last_weights(run) if "rotary" not in name]
    moments = load_file(run / LAST / "optimizer.safetensors")
    for names in (learned, moments):
        assert names and all("lora_" in name for name in names)
    facts = read_run(run)
    assert facts["settings"]["lora"]["rank"] == 4
    assert facts["progress"]["best_step"] > 0
    weights = load_file(run / "best" / "model.safetensors")
    assert not [name for name in weights if "lora" in name], "the checkpoint has plain weights"
    pooling = orjson.loads((run / "best" / "1_Pooling" / "config.json").read_bytes())
    assert pooling["pooling_mode"] == "lasttoken"
    assert status_of(training, "score", "--run", run, "--data", folder / "data") == 0


@pytest.mark.parametrize("name", ["oracle", "guided"])
def test_both_are_scored_on_the_texts_that_they_read(folder: Path, name: str) -> None:
    places = ("--run", folder / name, "--data", folder / "data")
    assert status_of(training, "score", *places) == 0
    examples = orjson.loads((folder / name / "examples.json").read_bytes())
    queries = [example["query"] for example in examples["queries"]]
    assert all((" [SEP] is " in query) == (name == "oracle") for query in queries)
    guidance = results.read(folder / name).settings["guidance"]
    assert guidance["oracle"] == ("oracle" if name == "guided" else None), "no folder, its name"


@pytest.mark.parametrize("oracle", ["oracle", "language-model"])
def test_an_oracle_is_not_exported(
    oracle: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ("--encoder", folder / oracle / "best", "--data", folder / "data")
    assert status_of(export, "bundle", *source, "--out", folder / "bundle") == 2
    assert "is an oracle" in capsys.readouterr().err
    assert not (folder / "bundle").exists()


def test_data_without_metadata_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lf_xmc.write(tiny_dataset(), folder / "bare")
    data, out = ("--data", folder / "bare"), ("--out", folder / "of-none")
    for app, command, said in (
        (training, ("score", "--run", folder / "oak"), "looks up metadata items, and "),
        (export, ("encoder", "--encoder", folder / "oak" / "best", *out), ""),
    ):
        assert status_of(app, *command, *data) == 2
        assert f"{said}data set colours has none" in capsys.readouterr().err
    assert not (folder / "of-none").exists()


def chosen(folder: Path) -> dict[str, float]:
    """Read a folder of results; return the metrics of the chosen prediction."""
    return next(result for result in results.read(folder).results if result.chosen).metrics


def test_it_is_scored_with_predicted_and_with_linked_items(folder: Path) -> None:
    places = ("--run", folder / "oak", "--data", folder / "data")
    assert status_of(training, "score", *places) == 0
    out = folder / "oak-linked"
    assert status_of(training, "score", *places, "--items", "linked", "--out", out) == 0
    found = results.read(out)
    assert found.name.endswith(", linked items") and found.settings["items"] == "linked"
    assert chosen(folder / "oak").keys() == chosen(out).keys()


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


@pytest.mark.parametrize("source", ["oak/best", "exported"])
def test_a_bundle_holds_items_and_fused_instances_and_is_measured_with_both_kinds_of_items(
    folder: Path, source: str, tmp_path: Path
) -> None:
    given = ("--encoder", folder / source, "--data", folder / "data")
    exact = ("--quantize", "none") if source == "oak/best" else ()
    out = folder / "bundles" / source.replace("/", "-")
    assert status_of(export, "bundle", *given, *exact, "--hold-out-test", "--out", out) == 0

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

    found = []
    for items in ("predicted", "linked"):
        places = ("--bundle", out, "--data", folder / "data", "--json", tmp_path / items)
        assert status_of(training, "score", *places, "--items", items) == 0
        found.append(orjson.loads((tmp_path / items).read_bytes()))
        assert found[-1]["items"] == items
    assert found[0]["rows"] != found[1]["rows"]
