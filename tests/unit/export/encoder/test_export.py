"""Export of a checkpoint, with the tiny graph instead of a traced network, and its model card."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from export.encoder import export
from export.encoder.export import EncoderOptions, export_encoder, fingerprint, model_card
from export.encoder.parity import Tolerance
from export.exported_encoder import (
    FILE,
    Description,
    Origin,
    PredictorDefaults,
    is_exported,
    open_exported,
    predictor_defaults,
    read_origin,
)
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.errors import (
    BundleAltered,
    BundleMissing,
    BundleUnsupported,
    InvalidData,
    InvalidInput,
    ParityError,
)
from service.core.files.folder_facts import FileFacts
from service.core.types import Role
from tests.support.tiny.encoder import tiny_facts, write_tiny_encoder
from tests.support.tiny.export import TinyReference, tiny_dataset, without_labels
from training.checkpoints.choices import Choices, write_choices
from training.evaluation import results
from training.evaluation.results import Result, Results

OPTIONS = EncoderOptions(quantization="none", threads=2)
QUIET = Console(quiet=True)


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyReference:
    monkeypatch.setattr(export, "trace", lambda encoder, target: encoder.trace_to(target))
    return TinyReference(tmp_path / "reference")


@pytest.fixture
def folder(reference: TinyReference, tmp_path: Path) -> Path:
    target = tmp_path / "encoder"
    export_encoder(reference, tiny_dataset(), target, options=OPTIONS, console=QUIET)
    return target


def test_the_folder_holds_what_a_bundle_needs(reference: TinyReference, folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"encoder.onnx", "tokenizer.json", "encoder.json", "README.md"}
    assert is_exported(folder)
    exported = open_exported(folder)
    facts = exported.description.encoder
    assert (facts.query_prompt, facts.label_prompt, facts.max_tokens) == ("query ", "passage ", 32)
    assert facts.fingerprint == fingerprint(reference, folder)
    assert exported.description.parity["parity.fp32_max_component"] < 1e-6
    opened = OnnxEncoder(folder, facts)
    ours = encode(opened, ["tent"], role=Role.QUERY)
    assert ours == pytest.approx(reference.encode(["tent"], role=Role.QUERY), abs=1e-6)


def test_different_encoders_have_different_fingerprints(
    reference: TinyReference, tmp_path: Path
) -> None:
    folder = tmp_path / "reference"
    fingerprints = {fingerprint(reference, folder)}
    for change in (
        lambda: setattr(reference, "max_tokens", 16),
        lambda: setattr(reference, "prompts", {Role.QUERY: "", Role.LABEL: "passage "}),
        lambda: write_tiny_encoder(folder, seed=1),
    ):
        change()
        fingerprints.add(fingerprint(reference, folder))
    assert len(fingerprints) == 4


@pytest.mark.parametrize(
    ("seed", "tolerance", "said"),
    [
        (1, Tolerance(), "differs from torch"),  # the traced graph is another model
        (0, Tolerance(cosine=1.1), "mean cosine"),
    ],
)
def test_a_graph_that_differs_by_more_than_the_tolerance_is_not_written(
    reference: TinyReference, tmp_path: Path, seed: int, tolerance: Tolerance, said: str
) -> None:
    write_tiny_encoder(tmp_path / "reference", seed=seed)
    options, target = replace(OPTIONS, tolerance=tolerance), tmp_path / "encoder"
    with pytest.raises(ParityError, match=said):
        export_encoder(reference, tiny_dataset(), target, options=options, console=QUIET)
    assert {path.name for path in tmp_path.iterdir()} == {"reference"}


def test_an_existing_target_and_a_data_set_without_labels_are_refused_before_any_work(
    reference: TinyReference, folder: Path
) -> None:
    traced = reference.traced
    with pytest.raises(InvalidInput, match="exists already"):
        export_encoder(reference, tiny_dataset(), folder, options=OPTIONS, console=QUIET)
    with pytest.raises(InvalidInput, match="empty has no labels"):
        export_encoder(
            reference, without_labels(), folder / "other", options=OPTIONS, console=QUIET
        )
    assert reference.traced == traced


def test_a_damaged_or_missing_file_is_named(folder: Path) -> None:
    path = folder / "encoder.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleAltered, match=r"encoder\.onnx"):
        open_exported(folder)
    path.unlink()
    with pytest.raises(BundleMissing, match=r"encoder\.onnx is missing"):
        open_exported(folder)


def test_a_wrong_description_is_named(folder: Path) -> None:
    path = folder / FILE
    description = orjson.loads(path.read_bytes())
    for change, error, said in (
        ({"format": "other"}, BundleUnsupported, "does not describe"),
        ({"version": 9}, BundleUnsupported, r"encoder\.json has format version 9.*export it again"),
        ({"parity": "good"}, BundleAltered, "parity"),
        ({"surprise": 1}, BundleAltered, "surprise"),
        ({"files": {}}, BundleAltered, "encoder.onnx is missing"),
    ):
        path.write_bytes(orjson.dumps({**description, **change}))
        with pytest.raises(error, match=said):
            open_exported(folder)
    path.write_text("{")
    with pytest.raises(BundleAltered, match="is not JSON"):
        open_exported(folder)
    path.unlink()
    assert not is_exported(folder)
    with pytest.raises(BundleMissing, match="cannot be read"):
        open_exported(folder)


# The training run ------------------------------------------------------------------------------

FACTS = {
    "recipe": "recipes/mine.toml",
    "settings": {
        "encoder": {"name": "package:base"},
        "seed": 7,
        "validation": {"rows": 1000},
    },
    "dataset": "moby",
    "progress": {"best_step": 400, "seconds": 61.5, "tokens": 12345},
    "hardware": {"device": "a processor", "cores": 2, "precision": "bf16"},
}


@pytest.fixture
def best(tmp_path: Path) -> Path:
    folder = tmp_path / "run/best"
    folder.mkdir(parents=True)
    (tmp_path / "run/run.json").write_bytes(orjson.dumps(FACTS))
    return folder


def origin(**changed: object) -> Origin:
    facts = Origin(
        recipe="mine.toml",
        base="package:base",
        dataset="moby",
        seed=7,
        held_out_rows=1000,
        steps=400,
        seconds=61.5,
        tokens=12345,
        hardware=FACTS["hardware"],
    )
    return replace(facts, **changed)


def test_a_run_has_the_metrics_of_the_chosen_settings_once_it_is_scored(best: Path) -> None:
    assert read_origin(best) == origin()
    found = [
        Result(method="memory", metrics={"P@1": value}, segments={}, chosen=chosen)
        for value, chosen in ((10.0, False), (52.5, True))
    ]
    run = Results(name="x", system="rae", dataset="moby", propensity={}, results=tuple(found))
    results.write(run, best.parent)
    assert read_origin(best) == origin(metrics={"P@1": 52.5})


def test_another_folder_has_no_origin_and_a_damaged_run_is_named(best: Path) -> None:
    assert read_origin(best.parent) is None
    (best.parent / "run.json").write_text("{}")
    with pytest.raises(InvalidData, match=r"run\.json: is not what `train` writes"):
        read_origin(best)


def test_what_was_chosen_is_the_default(best: Path) -> None:
    assert predictor_defaults(best) == PredictorDefaults(
        tau=0.04, depth=200, memorization=0.5, words=0.0
    )
    write_choices(best, Choices(system="rae", tau=0.05, memorization=0.7, depth=100))
    assert predictor_defaults(best) == PredictorDefaults(tau=0.05, depth=100, memorization=0.7)
    choices = Choices(system="rae", tau=0.05, memorization=0.7, depth=100, relevance="log")
    write_choices(best, choices)
    assert predictor_defaults(best).relevance == "log"


def test_the_card_has_settings_origin_and_metrics() -> None:
    description = Description(
        encoder=tiny_facts(),
        predictor=PredictorDefaults(tau=0.05, depth=100, memorization=0.7, relevance="log"),
        parity={"parity.cosine_mean": 0.99},
        libraries={"torch": "2.13.0"},
        files={"encoder.onnx": FileFacts(bytes=23_000_000, sha256="0" * 64)},
        origin=origin(metrics={"P@1": 52.5, "rows": 6000.0}, mixing=0.5),
    )
    card = model_card(description)
    for said in (
        "lambda 0.7, b 100, tau 0.05, relevance log",
        "seed 7",
        "62 s on a processor",
        "| P@1 | 52.5 |",
    ):
        assert said in card
    assert "rows |" not in card
    assert "0.5 of the way from the pretrained to the trained ones" in card
    assert "1,000 training rows" in card
