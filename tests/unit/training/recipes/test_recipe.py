"""Recipes: those of Keymatch, the allowed settings, and what is refused."""

from operator import attrgetter
from pathlib import Path

import pytest

from service.core.config import parse
from service.core.errors import InvalidConfig
from training.recipes import recipe as recipes
from training.systems.registry import SYSTEMS

# The papers' values for each recipe; the strings name the settings in the values' order.
RAE = (
    "encoder.query_tokens batch.instances optimizer.learning_rate optimizer.steps refresh.every"
    " refresh.top batch.hard_negatives encoder.label_tokens system"
)  # table 7
UNIDEC = (
    "batch.instances batch.positives batch.hard_negatives heads.encoder heads.classifier"
    " encoder.query_tokens heads.dropout optimizer.learning_rate heads.learning_rate"
    " optimizer.head_learning_rate optimizer.epochs refresh.every_epochs"
)
ORACLE = (
    "ngrams.buckets encoder.pooling metadata.append system batch.instances optimizer.learning_rate"
)
RAE_SYSTEM = {"name": "rae", "tau": 0.04}
NGAME = {"name": "ngame", "margin": 0.3, "hardest": 10}
PAPERS = {
    "rae-lf-amazontitles-131k": (RAE, 32, 8 * 896, 3e-4, 3_000, 1_000, 50, 2, 32, RAE_SYSTEM),
    "rae-lf-wikiseealso-320k": (RAE, 128, 8 * 576, 2e-4, 3_000, 1_000, 50, 2, 32, RAE_SYSTEM),
    "rae-lf-wikipedia-500k": (RAE, 192, 8 * 400, 2e-4, 28_000, 7_000, 25, 2, 32, RAE_SYSTEM),
    "rae-lf-amazontitles-1.3m": (RAE, 32, 8 * 896, 3e-4, 40_000, 8_000, 50, 2, 32, RAE_SYSTEM),
    **{
        f"unidec-lf-{data}": (UNIDEC, *numbers, 0.1, 1e-4, 2e-4, 1e-3, 150, 5)
        for data, numbers in {
            "amazon-131k": (576, 3, 6, 384, 384, 128),
            "amazontitles-131k": (576, 3, 6, 384, 384, 32),
            "wikiseealso-320k": (677, 3, 6, 384, 384, 128),
            "amazontitles-1.3m": (1098, 1, 6, 256, 256, 32),
        }.items()
    },
    # The oracle that is a language model reads metadata and trains LoRA adapters.
    "oracle-llm": (ORACLE, 0, "last-token", "both", NGAME, 1024, 2e-4),
}
IRENES_TABLE_10 = {  # rows, epochs
    "lf-amazontitles-1.3m": (2_225_354, 300),
    "lf-wikipedia-500k": (1_781_890, 40),
}


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_whole_and_names_a_system(name: str) -> None:
    recipe = recipes.load(name)
    settings = dict(recipe.system)
    module = __import__(SYSTEMS[settings.pop("name")], fromlist=["Settings"])
    parse(module.Settings, settings, source=name)


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_numbers(name: str) -> None:
    recipe, (fields, *numbers) = recipes.load(name), PAPERS[name]
    assert [attrgetter(field)(recipe) for field in fields.split()] == numbers
    if name.startswith("unidec"):
        batch, refresh = recipe.batch, recipe.refresh
        assert batch.cluster_size == batch.instances and refresh.top == 5 * batch.hard_negatives
        assert recipe.system["encoder_weight"] == 0.3 and recipe.system["normalized"] is False
    assert bool(recipe.lora.rank) == (name == "oracle-llm")


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


def test_numbers_in_steps_and_in_epochs_are_rivals(tmp_path: Path) -> None:
    by_steps = recipes.load("supcon", ["refresh.every=7"])
    assert (by_steps.refresh.every, by_steps.refresh.every_epochs) == (7, None)
    assert by_steps.validation.checks == 4, "another table's rival stays"

    mine = tmp_path / "mine.toml"
    mine.write_text("extends = 'ance-moby'\n[refresh]\nevery_epochs = 2\n")
    by_epochs = recipes.load(str(mine))
    assert (by_epochs.refresh.every, by_epochs.refresh.every_epochs) == (0, 2.0)

    mine.write_text("extends = 'rae'\n[refresh]\nevery_epochs = 2\nevery = 5\n")
    with pytest.raises(InvalidConfig, match="give either every or every_epochs"):
        recipes.load(str(mine))
    document = {"encoder": {"name": "x"}, "optimizer": {"learning_rate": 1.0}, "system": {}}
    with pytest.raises(InvalidConfig, match="give either steps or epochs"):
        recipes.parse(recipes.Recipe, document, source="mine")
    changed = recipes.load("rae", ["optimizer.steps=9", "validation.every=3"])
    assert (changed.optimizer.epochs, changed.validation.checks) == (None, 0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.stepz=5"], "rae-moby: optimizer.stepz is unknown; known are steps, "),
        (["optimizer.steps=0"], "rae-moby: optimizer.steps: must be at least"),
        (["batch.instances=1"], "rae-moby: batch.instances: must be at least"),
        (["batch.pool=half"], "rae-moby: batch.pool: must be 'batch' or 'all'"),
        (["steps"], "--set takes table.key=value, not 'steps'"),
        (["lora.rank=2", "encoder.frozen=true"], "rae-moby: lora.rank trains the"),
        (["seed.x=1"], "rae-moby: seed: must be a whole number"),
    ],
)
def test_a_wrong_number_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        recipes.load("rae-moby", overrides)
    assert str(raised.value).startswith(message)


def test_what_is_no_recipe_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("steps = ")
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.toml").write_text(f"extends = '{other}.toml'\n")
    for name, said in (
        ("rea-moby", r"no recipe is named 'rea-moby'.*rae-moby"),
        (str(tmp_path / "missing.toml"), r"missing\.toml cannot be read"),
        (str(tmp_path / "bad.toml"), r"bad\.toml is not TOML"),
        (str(tmp_path / "a.toml"), "extends itself"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            recipes.load(name)
