"""Optimizers: groups of parameters, their learning rates, and scaled fp16 gradients."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from training.loop.build_model import trainable_encoder
from training.loop.optimizers import (
    ENCODER,
    HEAD,
    Optimizers,
    learning_rate_factor,
    make_optimizers,
)
from training.models.precision import supported_precision
from training.recipes import recipe as recipes
from training.recipes.recipe import Recipe


def names_of(optimizers: Optimizers) -> list[str]:
    return [name for group in optimizers.param_groups for name in group["param_names"]]


def test_ngrams_have_a_learning_rate_of_their_own(model: Path) -> None:
    recipe = recipes.load("rae-moby", [f"encoder.name={model}", "ngrams.buckets=64"])
    module = trainable_encoder(recipe).model

    optimizer = make_optimizers({ENCODER: module}, recipe)

    rates = [group["lr"] for group in optimizer.param_groups for _ in group["params"]]
    names = names_of(optimizer)
    tables = [name for name in names if name.endswith("table.weight")]
    assert len(tables) == 1
    assert len(names) == len(set(names)) == len(list(module.parameters()))
    assert {name for name, rate in zip(names, rates, strict=True) if rate == 3e-3} == set(tables)
    assert rates.count(recipe.optimizer.learning_rate) == len(names) - 1


def test_encoder_and_head_are_separate_groups_even_at_one_rate() -> None:
    recipe = recipes.load("rae-moby")
    modules = {ENCODER: nn.Linear(2, 2), HEAD: nn.Linear(2, 2, bias=False)}
    optimizer = make_optimizers(modules, recipe)

    assert names_of(optimizer) == ["encoder/weight", "encoder/bias", "own/weight"]
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1, 1]


@pytest.mark.parametrize("scale", [1024.0, float("inf")])
def test_scaled_gradients_of_fp16_move_all_groups_as_unscaled_ones(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power of two as scale changes no bit; an infinite scale changes no weight."""
    recipe = recipes.load("rae-moby")
    encoder, table = nn.Linear(2, 2), nn.Embedding(3, 2, sparse=True)
    before = deepcopy((encoder, table))
    plain, scaled = deepcopy(before), (encoder, table)
    _step(*plain, Accelerator(cpu=True), recipe)
    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr(Accelerator, "mixed_precision", "fp16")
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    _step(*scaled, accelerator, recipe)

    expected = plain if scale == 1024.0 else before
    for module, other in zip(scaled, expected, strict=True):
        for parameter, wanted in zip(module.parameters(), other.parameters(), strict=True):
            assert torch.equal(parameter, wanted)
    assert accelerator.scaler.get_scale() == scale


def _step(
    encoder: nn.Linear, table: nn.Embedding, accelerator: Accelerator, recipe: Recipe
) -> None:
    """Take one step of a dense and a sparse module, both with clipped gradients."""
    optimizers = make_optimizers({ENCODER: encoder, HEAD: table}, recipe, sharded=("weight",))
    rows = table(torch.tensor([0, 2, 2]))
    accelerator.backward(1e3 * encoder(rows).square().sum())
    optimizers.clip(largest_norm=1e-6, accelerator=accelerator)
    optimizers.step(accelerator=accelerator)


def test_the_learning_rate_rises_and_falls_linearly() -> None:
    course = [learning_rate_factor(step, steps=10, warmup=0.2) for step in range(10)]

    assert course == pytest.approx([0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert learning_rate_factor(0, steps=5, warmup=0.0) == 1.0, "without a warm-up it starts whole"
    assert learning_rate_factor(0, steps=1, warmup=1.0) == 1.0, "one step is a course, too"


@pytest.mark.parametrize(("computed", "taken"), [(True, "bf16"), (False, "fp16")])
def test_a_gpu_takes_bf16_only_where_it_does_not_emulate_it(
    computed: bool, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return computed or including_emulation

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert supported_precision("auto") in ("bf16", "fp32")
    assert supported_precision("bf16") == "bf16"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", supported)
    assert supported_precision("auto") == taken
