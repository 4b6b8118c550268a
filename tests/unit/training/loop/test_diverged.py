"""A loss or gradient that is not finite ends the run; the last good checkpoint is kept."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from service.core.errors import Diverged
from tests.support.tiny.training import losses, open_tiny_run, train_tiny, write_recipe
from training.datasets import lf_xmc
from training.loop.model import TrainedModel

TOO_FAST = ("optimizer.learning_rate=1e30", "optimizer.warmup=0.0")


def test_step_and_learning_rate_are_named(model: Path, tmp_path: Path) -> None:
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    trainer = open_tiny_run(recipe, run, *TOO_FAST)
    with pytest.raises(Diverged) as raised:
        trainer.train()
    assert "not finite at step 2, with a learning rate of " in str(raised.value)
    assert "e+2" in str(raised.value) or "e+3" in str(raised.value)
    assert f"{run}/best has the checkpoint of step 0" in str(raised.value)
    assert all(map(math.isfinite, losses(run)))


def test_the_last_good_checkpoint_and_state_stay(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first validation, after step 4, writes both; the loss of step 6 is infinite."""
    recipe, run = write_recipe(tmp_path, model=model), tmp_path / "run"
    trainer = open_tiny_run(recipe, run, "validation.untrained=false")
    plant(monkeypatch, step=6, loss=math.inf)
    with pytest.raises(Diverged, match=r"the loss \(inf\) is not finite at step 6.*of step 4"):
        trainer.train()
    weights = load_file(run / "best" / "model.safetensors")
    assert all(abs(value).max() < math.inf for value in weights.values())
    assert trainer.progress.step == 5
    saved = load_file(run / "last" / "weights.safetensors")
    assert all(abs(value).max() < math.inf for value in saved.values())


def test_a_gradient_that_is_not_finite_moves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = open_tiny_run(write_recipe(tmp_path, model=model), tmp_path / "run")
    backward = TrainedModel.backward

    def overflowing(self: TrainedModel, *batch: object, **options: object) -> torch.Tensor:
        loss = backward(self, *batch, **options)  # type: ignore[arg-type]
        next(p for p in self.embedder.module.parameters() if p.grad is not None).grad.fill_(1e38)
        return loss

    monkeypatch.setattr(TrainedModel, "backward", overflowing)
    before = [p.detach().clone() for p in trainer.model.embedder.module.parameters()]
    with pytest.raises(Diverged, match="the gradient is not finite at step 1"):
        trainer.train()
    after = trainer.model.embedder.module.parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_train_ends_with_an_error(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recipe(tmp_path, model=model)
    lf_xmc.write(lf_xmc.read(data), tmp_path / "data")
    assert train_tiny(tmp_path, "run", *TOO_FAST, recipe="rae") == 2
    said = capsys.readouterr().err
    assert "is not finite at step 2" in said
    assert "smaller optimizer.learning_rate" in said
    assert (tmp_path / "run/best/modules.json").is_file()
    assert not (tmp_path / "run/run.json").exists()


def plant(monkeypatch: pytest.MonkeyPatch, *, step: int, loss: float) -> None:
    """Replace the loss of one step, counted from 1, by `loss`."""
    backward, calls = TrainedModel.backward, []

    def planted(self: TrainedModel, *batch: object, **options: object) -> torch.Tensor:
        calls.append(1)
        found = backward(self, *batch, **options)  # type: ignore[arg-type]
        return torch.full_like(found, loss) if len(calls) == step else found

    monkeypatch.setattr(TrainedModel, "backward", planted)
