"""A run's length in steps, epochs or minutes, which also sets the learning rate's schedule."""

import re

import orjson
import pytest

from service.command_line import open_console
from service.core.errors import InvalidConfig
from tests.support.tiny.training import losses, open_tiny_run, tiny_dataset, write_recipe
from training import progress as progress_lines
from training.loop.setup import open_run
from training.loop.state import Progress
from training.loop.trainer import Length, length_of
from training.recipes import recipe as recipes


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (["optimizer.steps=7"], 7),
        (["optimizer.epochs=3", "batch.instances=10"], 30),
        (["optimizer.epochs=0.5", "batch.instances=30"], 2),
        (["optimizer.epochs=1", "batch.instances=10", "optimizer.accumulation=5"], 2),
        (["optimizer.epochs=0.001"], 1),
    ],
)
def test_steps_of_a_run_on_a_hundred_rows(settings: list[str], steps: int) -> None:
    assert length_of(recipes.load("rae", settings), rows=100) == Length(steps=steps)


def test_a_run_is_as_far_as_its_steps_or_its_time() -> None:
    length = Length(steps=100, seconds=60.0)
    assert length.place(Progress(step=10, seconds=3.0)) == 10
    assert length.place(Progress(step=10, seconds=30.0)) == 50
    assert not length.is_over(Progress(step=99, seconds=59.0))
    assert length.is_over(Progress(step=100, seconds=1.0))
    assert length.is_over(Progress(step=3, seconds=61.0))
    assert Length(steps=5).place(Progress(step=4, seconds=1e9)) == 4


def test_one_of_steps_and_epochs_is_given() -> None:
    whole = "encoder.name=x"
    with pytest.raises(InvalidConfig, match="give either steps or epochs"):
        recipes.parse(
            recipes.Recipe,
            {"encoder": {"name": whole}, "optimizer": {"learning_rate": 1.0}, "system": {}},
            source="mine",
        )
    changed = recipes.load("rae", ["optimizer.steps=9", "validation.every=3"])
    assert (changed.optimizer.epochs, changed.validation.checks) == (None, 0)


def test_a_run_ends_when_its_minutes_are_over(tmp_path, model) -> None:
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    limits = ("optimizer.steps=100000", "optimizer.minutes=0.01", "validation.checks=1")
    progress = open_tiny_run(recipe, run, *limits).train()
    assert 1 <= progress.step < 100_000
    assert len(losses(run)) == progress.step
    assert progress.seconds < 30


def test_the_time_left_is_that_of_the_minutes(
    tmp_path, model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All steps would take hours, but the run ends after three seconds."""
    monkeypatch.setattr(progress_lines, "SECONDS", 0.0)  # prints a line at each step
    recipe = recipes.load(
        str(write_recipe(tmp_path, model=model)),
        ("optimizer.steps=1000000", "optimizer.minutes=0.05", "validation.checks=1"),
    )
    trainer = open_run(
        recipe,
        tiny_dataset(),
        tmp_path / "run",
        source="rae.toml",
        resume=False,
        console=open_console(),
    )
    trainer.train()
    said = capsys.readouterr().err
    left = re.findall(r"^train: .* %\), (.+) left, step [\d,]+, loss ", said, re.M)
    assert len(left) > 2
    assert all(re.fullmatch(r"\d s", one) for one in left)
    assert re.search(r"^train: [89]\d\d,\d{3} of 1,000,000 \((8|9)\d %\)", said, re.M)


def test_checks_are_equally_far_apart(tmp_path, model) -> None:
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    open_tiny_run(recipe, run, "optimizer.steps=8", "validation.checks=4").train()
    lines = map(orjson.loads, (run / "metrics.jsonl").read_bytes().splitlines())
    steps = dict.fromkeys(line["step"] for line in lines if line["kind"] == "validation")
    assert list(steps) == [0, 2, 4, 6, 8]


def test_the_untrained_encoder_competes(tmp_path, model) -> None:
    """If a learning rate destroys the encoder, the encoder of step 0 is kept."""
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    progress = open_tiny_run(recipe, run, "optimizer.learning_rate=100.0").train()
    assert (progress.best_step, progress.step) == (0, 8)
