"""A run that is stopped and resumed ends with the same weights as one that is not."""

from collections.abc import Sequence
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from service.core.errors import InvalidData
from tests.support.tiny.training import last_weights, losses, open_tiny_run, write_recipe
from training.checkpoints.run_json import BEST, write_run

VARIANTS = {
    "mined": ("batch.hard_negatives=2", "refresh.every=5", "refresh.first=3", "refresh.top=4"),
    "clustered": ("batch.order=clustered", "batch.cluster_size=4", "refresh.every=5"),
    "cached": ("optimizer.gradient_cache=true", "optimizer.accumulation=2"),
    "mixed": ("validation.mixing=[0.5, 1.0]", "ngrams.buckets=512"),
    "frozen": ("encoder.frozen=true", "ngrams.buckets=512", "ngrams.dropout=0.2"),
    "lora": ("lora.rank=2", "lora.dropout=0.2", "validation.mixing=[0.5, 1.0]"),
    "head": ("encoder.frozen=true", "system.name=irene"),
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_resumed_run_has_the_weights_of_an_unbroken_one(
    changes: Sequence[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, model=model)
    open_tiny_run(recipe, tmp_path / "unbroken", *changes).train()
    interrupt_at(6, monkeypatch)  # two steps after the last saved state
    with pytest.raises(KeyboardInterrupt):
        open_tiny_run(recipe, tmp_path / "broken", *changes).train()
    monkeypatch.undo()

    resumed = open_tiny_run(recipe, tmp_path / "broken", *changes, resume=True)
    assert resumed.progress.step == 4
    resumed.train()

    unbroken, broken = last_weights(tmp_path / "unbroken"), last_weights(tmp_path / "broken")
    assert unbroken.keys() == broken.keys()
    assert all(np.array_equal(unbroken[name], broken[name]) for name in unbroken)
    assert losses(tmp_path / "unbroken") == losses(tmp_path / "broken")


def test_a_resumed_disciple_goes_on_with_its_projection(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(model, tmp_path / "oracle" / BEST)
    write_run(tmp_path / "oracle", {"dataset": "colours", "settings": {}})
    oracle = f"guidance.oracle={tmp_path / 'oracle'}"
    test_a_resumed_run_has_the_weights_of_an_unbroken_one(
        [oracle, "guidance.projection=learned"], model, tmp_path, monkeypatch
    )
    learned = last_weights(tmp_path / "unbroken")["training-only/weight"]
    assert not np.array_equal(learned, np.eye(len(learned)))


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs raise `KeyboardInterrupt` before this step."""
    from training.loop.trainer import Trainer

    take_step = Trainer.take_step

    def interrupted(self: Trainer, number: int) -> None:
        if number == step:
            raise KeyboardInterrupt
        take_step(self, number)

    monkeypatch.setattr(Trainer, "take_step", interrupted)


def test_a_folder_with_a_run_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    recipe, steps = write_recipe(tmp_path, model=model), "optimizer.steps=1"
    open_tiny_run(recipe, tmp_path / "run", steps).train()

    with pytest.raises(InvalidData, match="already holds a run; continue it with --resume"):
        open_tiny_run(recipe, tmp_path / "run", steps)
    with pytest.raises(InvalidData, match="belongs to a run with another recipe"):
        open_tiny_run(recipe, tmp_path / "run", steps, "seed=1", resume=True)


def test_a_gradient_cache_changes_no_step(model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, model=model)
    changes = ("encoder.dropout=0.0", "optimizer.steps=4", "optimizer.bucket_tokens=64")
    open_tiny_run(recipe, tmp_path / "direct", *changes).train()
    open_tiny_run(recipe, tmp_path / "cached", *changes, "optimizer.gradient_cache=true").train()

    assert losses(tmp_path / "direct") == pytest.approx(losses(tmp_path / "cached"), rel=1e-4)
