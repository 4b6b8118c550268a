"""Recipes: those that come with Keymatch, what one may say, and what is refused."""

from pathlib import Path

import pytest

from service.core.config import parse
from service.core.errors import InvalidConfig
from training.recipes import recipe as recipes
from training.systems.registry import SYSTEMS, build_system

TABLE_7 = {
    "rae-lf-amazontitles-131k": (32, 8 * 896, 3e-4, 3_000, 1_000, 50, 2),
    "rae-lf-wikiseealso-320k": (128, 8 * 576, 2e-4, 3_000, 1_000, 50, 2),
    "rae-lf-wikipedia-500k": (192, 8 * 400, 2e-4, 28_000, 7_000, 25, 2),
    "rae-lf-amazontitles-1.3m": (32, 8 * 896, 3e-4, 40_000, 8_000, 50, 2),
}

IRENES_TABLE_10 = {
    "lf-amazontitles-1.3m": (2_225_354, 300),
    "lf-wikipedia-500k": (1_781_890, 40),
}

UNIDECS_NUMBERS = {  # instances, beta, eta, dimensions of each head, tokens of a query
    "unidec-lf-amazon-131k": (576, 3, 6, 384, 128),
    "unidec-lf-amazontitles-131k": (576, 3, 6, 384, 32),
    "unidec-lf-wikiseealso-320k": (677, 3, 6, 384, 128),
    "unidec-lf-amazontitles-1.3m": (1098, 1, 6, 256, 32),
}


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_whole_and_names_a_system(name: str) -> None:
    recipe = recipes.load(name)
    settings = dict(recipe.system)
    module = __import__(SYSTEMS[settings.pop("name")], fromlist=["Settings"])

    parse(module.Settings, settings, source=name)


@pytest.mark.parametrize("name", TABLE_7)
def test_the_papers_table_7(name: str) -> None:
    recipe = recipes.load(name)

    assert TABLE_7[name] == (
        recipe.encoder.query_tokens,
        recipe.batch.instances,
        recipe.optimizer.learning_rate,
        recipe.optimizer.steps,
        recipe.refresh.every,
        recipe.refresh.top,
        recipe.batch.hard_negatives,
    )
    assert recipe.encoder.label_tokens == 32
    assert recipe.system == {"name": "rae", "tau": 0.04}


@pytest.mark.parametrize("name", IRENES_TABLE_10)
def test_irenes_table_10(name: str) -> None:
    first, second = recipes.load(f"ngame-{name}"), recipes.load(f"irene-{name}")
    rows, epochs = IRENES_TABLE_10[name]

    assert second.encoder.frozen and second.encoder.stage_one == f"ngame-{name}"
    assert (first.optimizer.learning_rate, second.optimizer.learning_rate) == (2e-4, 2e-4)
    assert second.optimizer.sparse_learning_rate == 1e-3
    for recipe, passes in ((first, epochs), (second, 120)):
        done = recipe.optimizer.steps * recipe.batch.instances / rows
        assert done == pytest.approx(passes, rel=0.02)
    margins = (second.system["classifier_margin"], second.system["combiner_margin"])
    assert margins == (0.1, 0.3)


@pytest.mark.parametrize("name", UNIDECS_NUMBERS)
def test_unidecs_numbers(name: str) -> None:
    recipe = recipes.load(name)
    batch, refresh, optimizer, heads = recipe.batch, recipe.refresh, recipe.optimizer, recipe.heads

    assert UNIDECS_NUMBERS[name] == (
        batch.instances,
        batch.positives,
        batch.hard_negatives,
        heads.encoder,
        recipe.encoder.query_tokens,
    )
    assert heads.classifier == heads.encoder and heads.dropout == 0.1
    rates = (optimizer.learning_rate, heads.learning_rate, optimizer.head_learning_rate)
    assert rates == (1e-4, 2e-4, 1e-3)
    assert (optimizer.epochs, refresh.every_epochs) == (150, 5)
    assert batch.cluster_size == batch.instances and refresh.top == 5 * batch.hard_negatives
    assert recipe.system["encoder_weight"] == 0.3 and recipe.system["normalized"] is False


def test_the_language_models_oracle_reads_metadata_and_learns_by_adapters() -> None:
    recipe = recipes.load("oracle-llm")

    assert recipe.lora.rank and not recipe.ngrams.buckets
    assert (recipe.encoder.pooling, recipe.metadata.append) == ("last-token", "both")
    assert recipe.system == {"name": "ngame", "margin": 0.3, "hardest": 10}
    assert (recipe.batch.instances, recipe.optimizer.learning_rate) == (1024, 2e-4)


def test_a_file_extends_another_and_is_overridden(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        "seed = 3\n[encoder]\nname = 'x'\n[optimizer]\nsteps = 5\nlearning_rate = 1e-3\n"
        "[system]\nname = 'rae'\ntau = 0.1\n"
    )
    path = tmp_path / "mine.toml"
    path.write_text("extends = 'base.toml'\n[optimizer]\nsteps = 7\n[system]\nname = 'ngame'\n")

    recipe = recipes.load(str(path), ["optimizer.learning_rate=0.5", "encoder.name=some/hub-name"])

    assert (recipe.seed, recipe.optimizer.steps, recipe.optimizer.learning_rate) == (3, 7, 0.5)
    assert recipe.encoder.name == "some/hub-name"
    assert recipe.system == {"name": "ngame"}, "another system's numbers are not inherited"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.stepz=5"], "rae-moby: optimizer.stepz is unknown; known are steps, "),
        (["optimizer.steps=0"], "rae-moby: optimizer.steps: Input should be greater than or equal"),
        (["optimizer.steps=abc"], "rae-moby: optimizer.steps: Input should be a valid integer"),
        (["batch.pool=half"], "rae-moby: batch.pool: Input should be 'batch' or 'all'"),
        (["steps"], "--set takes table.key=value, not 'steps'"),
        (["lora.rank=2", "encoder.frozen=true"], "rae-moby: Value error, lora.rank trains the"),
        (["a.b.c=1"], "--set takes table.key=value, not 'a.b.c=1'"),
        (["seed.x=1"], "rae-moby: seed: Input should be a valid integer"),
    ],
)
def test_a_wrong_number_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        recipes.load("rae-moby", overrides)

    assert str(raised.value).startswith(message)


def test_an_unknown_recipe_says_which_there_are() -> None:
    with pytest.raises(InvalidConfig, match=r"no recipe is named 'rea-moby'.*rae-moby"):
        recipes.load("rea-moby")


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"missing\.toml cannot be read"):
        recipes.load(str(tmp_path / "missing.toml"))
    (tmp_path / "bad.toml").write_text("steps = ")
    with pytest.raises(InvalidConfig, match=r"bad\.toml is not TOML"):
        recipes.load(str(tmp_path / "bad.toml"))


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.toml").write_text(f"extends = '{other}.toml'\n")
    with pytest.raises(InvalidConfig, match="extends itself"):
        recipes.load(str(tmp_path / "a.toml"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "rea"}, "system.name must be one of rae, "),
        ({}, "system.name must be one of rae, "),
        ({"name": "rae", "margin": 1.0}, "system: margin is unknown; known are tau, "),
        ({"name": "rae", "tau": -1.0}, "system: tau: Input should be greater than 0"),
    ],
)
def test_a_wrong_system_is_named(table: dict, message: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        build_system(table, None, source="mine.toml")

    assert str(raised.value).startswith(f"mine.toml: {message}")
