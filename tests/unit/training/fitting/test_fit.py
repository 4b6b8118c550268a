"""On the tiny data set, `fit` tries candidates, reports them, and keeps the best as a run."""

import os
import re
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from export.exported_encoder import predictor_defaults, read_origin
from service.command_line import run
from tests.support.tiny.training import tiny_dataset
from tests.unit.training.fitting.conftest import Fitted, fit
from training.__main__ import app
from training.checkpoints.choices import read_choices
from training.datasets import lf_xmc
from training.evaluation.examples import read_examples
from training.fitting.candidates import CANDIDATES, QUICK, WHOLE
from training.fitting.facts import data_facts
from training.fitting.runs import first_trial
from training.fitting.time_left import deadline
from training.fitting.trial import UNTRAINED
from training.models.encoder_location import VECTOR_CACHE
from training.models.torch_encoder import load_encoder


def test_the_kept_run_is_one_as_train_writes_it(fitted: Fitted, data: Path) -> None:
    kept_run = fitted.folder
    facts = orjson.loads((kept_run / "run.json").read_bytes())
    tried = {trial["name"]: trial for trial in facts["fit"]}
    assert list(tried)[:4] == ["untrained", "rae-quick", "unidec-quick", "whole"]
    best = max(tried.values(), key=lambda trial: sum(trial["metrics"].values()))
    (kept,) = [trial for trial in tried.values() if trial["why"] == "kept"]
    assert sum(kept["metrics"].values()) >= 0.9 * sum(best["metrics"].values())
    assert {path.name for path in kept_run.iterdir()} >= {"best", "run.json", "metrics.jsonl"}
    assert not (kept_run / "tried").exists()
    assert run(app, ["score", "--data", str(data), "--run", str(kept_run)]) == 0
    examples = read_examples(kept_run)
    assert examples is not None and examples.against is not None
    assert examples.against.rows == len(examples.queries) == 16


def test_the_first_trial_names_the_gpu_that_encoded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.fitting.runs.gpu_name", lambda: "a GPU")
    encoder, dataset = load_encoder(str(model)), tiny_dataset()
    facts = data_facts(dataset, encoder)
    first_trial(encoder, dataset, facts, tmp_path / "run", name=UNTRAINED, seed=0)
    assert orjson.loads((tmp_path / "run/run.json").read_bytes())["hardware"]["device"] == "a GPU"


def test_a_text_passes_the_frozen_encoder_once(fitted: Fitted, data: Path) -> None:
    """Later candidates with a frozen encoder reuse the vectors of the first trial."""
    dataset = lf_xmc.read(data)
    # The first trial encodes instances and labels; the report adds the test queries.
    assert fitted.encoded <= len(dataset.train) + len(dataset.labels) + len(dataset.test)
    assert VECTOR_CACHE not in os.environ


def test_it_goes_on_from_a_run(fitted: Fitted, data: Path, tmp_path: Path, capsys) -> None:
    assert fit(data, tmp_path / "again", fitted.folder, minutes=0.1) == 0
    said = capsys.readouterr().out
    assert "no time is left for it" in said
    assert "parent is kept: nothing else was tried" in said
    assert (tmp_path / "again" / "best" / "modules.json").is_file()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("minutes", [0.1, 5])
def test_the_relevance_that_is_chosen_is_kept(
    minutes: float, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first label of each row has a hundred times the weight of the second."""
    dataset, folder = tiny_dataset(), tmp_path / "run"
    dataset.train.labels_of.data[::2] = 100.0
    lf_xmc.write(dataset, tmp_path / "weighted")
    monkeypatch.setattr("training.fitting.runs.best_relevance", lambda trials: "binary")
    assert fit(tmp_path / "weighted", folder, model, minutes=minutes) == 0
    choices = read_choices(folder / "best")
    assert choices is not None and choices.relevance == "binary"
    assert predictor_defaults(folder / "best").relevance == "binary"
    origin = read_origin(folder / "best")
    assert origin is not None and origin.dataset == "colours"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--minutes", "0"], "minutes must be above 0, not 0"),
        (["--encoder", "no/such/encoder"], "encoder 'no/such/encoder' cannot be loaded"),
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
    assert fit(data, folder, model) == 128 + signal.SIGTERM
    said = capsys.readouterr().out
    assert "SIGTERM: what was being tried is dropped" in said
    assert f"--data {data} --encoder {folder} --out OTHER" in said
    facts = orjson.loads((folder / "run.json").read_bytes())
    assert facts["recipe"] == "untrained"
    assert not (folder / "tried").exists()


@pytest.mark.usefixtures("short")
def test_a_candidate_whose_loss_is_not_finite_is_dropped(
    model: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from training.loop.model import TrainedModel

    backward, wrong = TrainedModel.backward, []

    def planted(self: TrainedModel, *batch: Any, **options: Any) -> torch.Tensor:
        loss = backward(self, *batch, **options)
        if not wrong:  # only in the first step of the first candidate
            wrong.append(True)
            return torch.full_like(loss, torch.nan)
        return loss

    monkeypatch.setattr(TrainedModel, "backward", planted)
    tried = {name: CANDIDATES[name] for name in (QUICK, WHOLE)}
    monkeypatch.setattr("training.fitting.fit.CANDIDATES", tried)
    folder = tmp_path / "run"
    assert fit(data, folder, model) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"^(\S+): the loss \(nan\) is not finite at step 1, with .*dropped$", said, re.M
    )
    trials = orjson.loads((folder / "run.json").read_bytes())["fit"]
    assert [trial["name"] for trial in trials] == [UNTRAINED, WHOLE], "the next one was tried"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("slow", ["choose_for_inference", "open_run"])
def test_the_minutes_hold_for_everything(
    slow: str,
    model: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Work before or after the steps takes a minute, but the deadline ends it after a second."""
    allowed: list[float] = []

    def soon(seconds: float) -> AbstractContextManager[None]:
        allowed.append(seconds)
        return deadline(min(seconds, 1.0))

    monkeypatch.setattr("training.fitting.fit.deadline", soon)
    monkeypatch.setattr(f"training.fitting.runs.{slow}", lambda *_, **options: time.sleep(60))
    folder, began = tmp_path / "run", time.monotonic()
    assert fit(data, folder, model) == 0
    assert time.monotonic() - began < 60
    assert allowed and all(seconds < 5 * 60 for seconds in allowed)
    said = capsys.readouterr().out
    assert "it was not done in time, and is dropped" in said
    assert "untrained is kept" in said
    assert (folder / "best/modules.json").is_file() and not (folder / "tried").exists()


def test_the_facts_of_the_tiny_data(model: Path, data: Path) -> None:
    facts = data_facts(lf_xmc.read(data), load_encoder(str(model)))
    assert (facts.rows, facts.labels, facts.pairs, facts.held_out) == (48, 16, 96, 9)
    assert facts.known == 0.0 and facts.texts == 64
    lines = list(facts.lines())
    assert lines[0] == "48 training rows with a label, 16 labels, 2.0 labels a row"
    assert lines[-1].startswith("9 rows are held out, 3 times over")
