"""The fit command on the tiny data set: it tries, tells, and keeps the best as an ordinary run."""

import os
import signal
from pathlib import Path

import orjson
import pytest

from service.command_line import run
from training.__main__ import app
from training.datasets import lf_xmc
from training.fitting.facts import data_facts
from training.models.torch_encoder import load_encoder


@pytest.fixture(scope="module")
def fitted(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit") / "run"
    command = ["fit", "--data", str(data), "--out", str(folder), "--from", str(model)]
    assert run(app, [*command, "--minutes", "5"]) == 0
    return folder


def test_the_kept_run_is_one_as_train_writes_it(fitted: Path, data: Path) -> None:
    facts = orjson.loads((fitted / "run.json").read_bytes())
    tried = {trial["name"]: trial for trial in facts["fit"]}
    assert list(tried)[:3] == ["untrained", "rae-quick", "rae"]
    best = max(tried.values(), key=lambda trial: sum(trial["metrics"].values()))
    assert sum(tried[facts["recipe"]]["metrics"].values()) >= 0.9 * sum(best["metrics"].values())
    assert {path.name for path in fitted.iterdir()} >= {"best", "run.json", "metrics.jsonl"}
    assert not (fitted / "tried").exists()
    assert run(app, ["score", "--data", str(data), "--run", str(fitted)]) == 0


def test_it_goes_on_from_a_run(fitted: Path, data: Path, tmp_path: Path, capsys) -> None:
    command = ["fit", "--data", str(data), "--out", str(tmp_path / "again")]
    assert run(app, [*command, "--from", str(fitted), "--minutes", "0.1"]) == 0
    said = capsys.readouterr().out
    assert "no time is left for it" in said
    assert "untrained is kept: nothing else was tried" in said
    assert (tmp_path / "again" / "best" / "modules.json").is_file()


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
