"""Which parameters an optimizer moves together, and at which rate."""

from pathlib import Path

from torch import nn

from training.loop.build_model import trainable_encoder
from training.loop.optimizers import make_optimizers
from training.recipes import recipe as recipes


def test_ngrams_have_a_learning_rate_of_their_own(model: Path) -> None:
    recipe = recipes.load("rae-moby", [f"encoder.name={model}", "ngrams.buckets=64"])
    module = trainable_encoder(recipe).model

    optimizer = make_optimizers(module, None, recipe)

    rates = [group["lr"] for group in optimizer.param_groups for _ in group["params"]]
    names = optimizer.names
    tables = [name for name in names if name.endswith("table.weight")]
    assert len(tables) == 1
    assert len(names) == len(set(names)) == len(list(module.parameters()))
    assert {name for name, rate in zip(names, rates, strict=True) if rate == 3e-3} == set(tables)
    assert rates.count(recipe.optimizer.learning_rate) == len(names) - 1


def test_encoder_and_head_are_separate_groups_even_at_one_rate() -> None:
    recipe = recipes.load("rae-moby")
    optimizer = make_optimizers(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), recipe)

    assert optimizer.names == ["encoder/weight", "encoder/bias", "own/weight"]
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1, 1]
