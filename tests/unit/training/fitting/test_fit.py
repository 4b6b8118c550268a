"""The fit command on the tiny data set: it tries, tells, and keeps the best as an ordinary run."""

import os
import signal
from pathlib import Path

import orjson
import pytest

from export.encoder.provenance import predictor_defaults, read_origin
from service.command_line import run
from service.core.types import Floats
from tests.support.tiny.training import tiny_dataset
from training.__main__ import app
from training.checkpoints.choices import read_choices
from training.datasets import lf_xmc
from training.evaluation.examples import read_examples
from training.fitting.facts import data_facts
from training.models.encoder_location import VECTOR_CACHE
from training.models.torch_encoder import load_encoder
from training.models.vector_cache import VectorCache


@pytest.fixture(scope="module")
def fitted(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit") / "run"
    command = ["fit", "--data", str(data), "--out", str(folder), "--from", str(model)]
    assert run(app, [*command, "--minutes", "5"]) == 0
    return folder


def test_the_kept_run_is_one_as_train_writes_it(fitted: Path, data: Path) -> None:
    facts = orjson.loads((fitted / "run.json").read_bytes())
    tried = {trial["name"]: trial for trial in facts["fit"]}
    assert list(tried)[:4] == ["untrained", "rae-quick", "unidec-quick", "whole"]
    best = max(tried.values(), key=lambda trial: sum(trial["metrics"].values()))
    (kept,) = [trial for trial in tried.values() if trial["why"] == "kept"]
    assert sum(kept["metrics"].values()) >= 0.9 * sum(best["metrics"].values())
    assert {path.name for path in fitted.iterdir()} >= {"best", "run.json", "metrics.jsonl"}
    assert not (fitted / "tried").exists()
    assert run(app, ["score", "--data", str(data), "--run", str(fitted)]) == 0
    examples = read_examples(fitted)
    assert examples is not None and examples.against is not None
    assert examples.against.rows == len(examples.queries) == 16


def test_a_text_passes_the_frozen_encoder_once(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates beside the frozen encoder take the vectors of the first trial."""
    encoded: list[int] = []
    write = VectorCache._write

    def noted(cache: VectorCache, keys: list[bytes], vectors: Floats) -> None:
        encoded.append(len(keys))
        write(cache, keys, vectors)

    monkeypatch.setattr(VectorCache, "_write", noted)
    command = ["fit", "--data", str(data), "--out", str(tmp_path / "run"), "--from", str(model)]
    assert run(app, [*command, "--minutes", "5"]) == 0
    tried = orjson.loads((tmp_path / "run" / "run.json").read_bytes())["fit"]
    assert [trial["name"] for trial in tried][:2] == ["untrained", "rae-quick"]
    dataset = lf_xmc.read(data)
    # Instances, labels, and the test queries of the report, each by the first trial.
    texts = len(dataset.train) + len(dataset.labels) + len(dataset.test)
    assert sum(encoded) <= texts
    assert VECTOR_CACHE not in os.environ


def test_it_goes_on_from_a_run(fitted: Path, data: Path, tmp_path: Path, capsys) -> None:
    command = ["fit", "--data", str(data), "--out", str(tmp_path / "again")]
    assert run(app, [*command, "--from", str(fitted), "--minutes", "0.1"]) == 0
    said = capsys.readouterr().out
    assert "no time is left for it" in said
    assert "untrained is kept: nothing else was tried" in said
    assert (tmp_path / "again" / "best" / "modules.json").is_file()


@pytest.fixture
def weighted(tmp_path: Path) -> Path:
    """The tiny data set; the first label of each row weighs a hundred times the second."""
    dataset = tiny_dataset()
    dataset.train.labels_of.data[::2] = 100.0
    folder = tmp_path / "weighted"
    lf_xmc.write(dataset, folder)
    return folder


@pytest.mark.parametrize("minutes", ["0.1", "1"])
def test_the_relevance_that_is_chosen_is_kept(
    minutes: str,
    model: Path,
    weighted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training.fitting.runs.best_relevance", lambda trials: "binary")
    folder = tmp_path / "run"
    command = ["fit", "--data", str(weighted), "--out", str(folder), "--from", str(model)]
    assert run(app, [*command, "--minutes", minutes]) == 0
    choices = read_choices(folder / "best")
    assert choices is not None and choices.relevance == "binary"
    assert predictor_defaults(folder / "best").relevance == "binary"
    origin = read_origin(folder / "best")
    assert origin is not None and origin.dataset == "colours"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--minutes", "0"], "minutes must be above 0, not 0"),
        (["--from", "no/such/encoder"], "encoder 'no/such/encoder' cannot be loaded"),
    ],
)
def test_wrong_options_are_named(
    options: list[str], message: str, data: Path, tmp_path: Path, capsys
) -> None:
    assert run(app, ["fit", "--data", str(data), "--out", str(tmp_path / "run"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_interrupt_keeps_what_was_finished(
    model: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from training.loop.trainer import Trainer

    def interrupted(self: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "train", interrupted)
    folder = tmp_path / "run"
    command = ["fit", "--data", str(data), "--out", str(folder), "--from", str(model)]
    assert run(app, [*command, "--minutes", "5"]) == 128 + signal.SIGTERM
    said = capsys.readouterr().out
    assert "SIGTERM: what was being tried is dropped" in said
    assert f"--data {data} --from {folder} --out OTHER" in said
    facts = orjson.loads((folder / "run.json").read_bytes())
    assert facts["recipe"] == "untrained"
    assert not (folder / "tried").exists()


def test_the_facts_of_the_tiny_data(model: Path, data: Path) -> None:
    facts = data_facts(lf_xmc.read(data), load_encoder(str(model)))
    assert (facts.rows, facts.labels, facts.pairs, facts.held_out) == (48, 16, 96, 9)
    assert facts.known == 0.0 and facts.texts == 64
    lines = list(facts.lines())
    assert lines[0] == "48 training rows with a label, 16 labels, 2.0 labels a row"
    assert lines[-1].startswith("9 rows are held out, 3 times anew")
