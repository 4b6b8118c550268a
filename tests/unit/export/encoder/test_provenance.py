"""An exported encoder and its model card contain facts of the training run."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from export.encoder.export import model_card
from export.exported_encoder import (
    Description,
    Origin,
    PredictorDefaults,
    predictor_defaults,
    read_origin,
)
from service.core.errors import InvalidData
from service.core.files.folder_facts import FileFacts
from tests.support.tiny.encoder import tiny_facts
from training.checkpoints.choices import Choices, write_choices
from training.evaluation import results
from training.evaluation.results import Result, Results

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
    assert predictor_defaults(best) == PredictorDefaults(tau=0.04, depth=200, memorization=0.5)
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
