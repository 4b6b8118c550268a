"""Scoring a run and an encoder from the command line."""

from pathlib import Path

import orjson
import pytest

from service.command_line import run
from tests.support.tiny.training import RECIPE
from training.__main__ import app
from training.evaluation import results
from training.selection.memory_choices import MEMORIZATIONS


@pytest.mark.parametrize("system", ["rae", "one-versus-all"])
def test_a_run_is_scored_at_what_was_chosen_and_at_all_else(
    system: str, model: Path, data: Path, tmp_path: Path
) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "run"
    recipe.write_text(RECIPE.format(model=model, system=system))
    assert run(app, ["train", str(recipe), "--data", str(data), "--out", str(out)]) == 0
    assert run(app, ["score", "--run", str(out), "--data", str(data), "--name", "mine"]) == 0

    scored = results.read(out)
    chosen = orjson.loads((out / "best" / "keymatch.json").read_bytes())
    first, *others = scored.results
    assert (scored.name, scored.system, scored.dataset) == ("mine", system, "colours")
    assert first.chosen
    assert (first.memorization, first.depth) == (chosen["memorization"], chosen["depth"])
    assert not any(other.chosen for other in others)
    assert {other.method for other in others} >= {"labels only", "instances only", "separate"}
    untrained = [] if system == "one-versus-all" else [0, 0, 0]
    assert [check.step for check in scored.history] == [*untrained, 2, 2, 2, 4, 4, 4]
    assert scored.training_seconds is not None


def test_an_encoder_is_scored_without_a_run(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--encoder", str(model), "--out", str(out), "--data", str(data)]

    assert run(app, ["score", *arguments]) == 0

    scored = results.read(out)
    assert scored.training_seconds is None
    assert scored.results[0].chosen
    assert scored.results[0].memorization in MEMORIZATIONS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --run, or --encoder and --out"),
        (["--encoder", "x"], "give either --run, or --encoder and --out"),
        (["--run", "{tmp}", "--out", "x"], "give either --run, or --encoder and --out"),
        (["--run", "{tmp}"], "run.json: is missing: the run has not finished"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str],
    message: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]

    assert run(app, ["score", "--data", str(data), *given]) == 2
    assert message in capsys.readouterr().err
