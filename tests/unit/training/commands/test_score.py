"""`score` for a run and for an encoder."""

import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from service.command_line import run
from tests.support.tiny.training import RECIPE
from training.__main__ import app
from training.checkpoints.choices import read_choices, write_choices
from training.datasets import lf_xmc
from training.evaluation import results
from training.evaluation.examples import read_examples
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
    examples = read_examples(out)
    assert examples is not None and len(examples.queries) == 16
    assert (examples.against is not None) == (system == "rae")  # only RAE-XMC has a step 0


@pytest.fixture
def out(two_runs: Path, tmp_path: Path) -> Path:
    """A copy of the RAE-XMC run that a test may change."""
    return shutil.copytree(two_runs / "rae", tmp_path / "run")


def test_the_untrained_memory_is_kept_in_training_or_measured_when_asked(
    out: Path, model: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score = ["score", "--run", str(out), "--data", str(data)]
    assert run(app, score) == 0
    assert f"against the memory of {model} before this training: " in capsys.readouterr().out
    kept = read_examples(out)

    (out / "untrained.safetensors").unlink()
    assert run(app, score) == 0
    assert "with --untrained they are measured" in capsys.readouterr().out

    assert run(app, [*score, "--untrained"]) == 0
    again = read_examples(out)
    assert kept is not None and again is not None
    assert [query.query for query in again.queries] == [query.query for query in kept.queries]
    assert again.against is not None and again.against.rows == 16
    assert (out / "untrained.safetensors").is_file()


def test_an_encoder_is_scored_without_a_run(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--encoder", str(model), "--out", str(out), "--data", str(data)]

    assert run(app, ["score", *arguments]) == 0

    scored = results.read(out)
    assert scored.training_seconds is None
    assert scored.results[0].chosen
    assert scored.results[0].memorization in MEMORIZATIONS


def test_a_run_votes_with_the_relevance_that_was_chosen_or_given(
    out: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, weighted = lf_xmc.read(data), tmp_path / "weighted"
    dataset.train.labels_of.data[::2] = 100.0
    lf_xmc.write(dataset, weighted)

    def figures(folder: Path, *options: str) -> list[dict[str, float]]:
        command = ["score", "--run", str(out), "--data", str(folder), *options]
        assert run(app, command) == 0
        return [result.metrics for result in results.read(out).results]

    equal, given = figures(data), figures(weighted)
    assert "relevance" not in capsys.readouterr().out
    assert given != equal
    assert figures(weighted, "--relevance", "binary") == equal
    chosen = read_choices(out / "best")
    assert chosen is not None
    write_choices(out / "best", replace(chosen, relevance="binary"))
    assert figures(weighted) == equal
    assert "votes with relevance binary" in capsys.readouterr().out
    assert figures(weighted, "--relevance", "given") == given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of --bundle, --run, or --encoder and --out"),
        (["--encoder", "x"], "give one of --bundle, --run, or --encoder and --out"),
        (["--run", "{tmp}", "--out", "x"], "give one of --bundle, --run, or --encoder and --out"),
        (["--encoder", "x", "--out", "y", "--untrained"], "--untrained goes with --run"),
        (["--bundle", "x", "--run", "{tmp}"], "--bundle and --run exclude each other"),
        (["--bundle", "x", "--untrained"], "--bundle and --untrained exclude each other"),
        (["--run", "{tmp}", "--exact"], "--exact goes with --bundle"),
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
