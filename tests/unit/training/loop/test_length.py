"""The length of a run: steps, epochs, minutes, and what the learning rate follows."""

import orjson
import pytest

from service.core.errors import InvalidConfig
from tests.support.tiny.training import losses, open_tiny_run, write_recipe
from training.loop.length import Length, length_of
from training.loop.state import Progress
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


def test_checks_are_equally_far_apart(tmp_path, model) -> None:
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    open_tiny_run(recipe, run, "optimizer.steps=8", "validation.checks=4").train()
    lines = map(orjson.loads, (run / "metrics.jsonl").read_bytes().splitlines())
    steps = dict.fromkeys(line["step"] for line in lines if line["kind"] == "validation")
    assert list(steps) == [0, 2, 4, 6, 8]


def test_the_untrained_encoder_competes(tmp_path, model) -> None:
    """A rate that destroys the encoder: what was there before the first step is kept."""
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    progress = open_tiny_run(recipe, run, "optimizer.learning_rate=100.0").train()
    assert (progress.best_step, progress.step) == (0, 8)
