"""UniDEC's heads and classifiers over an already trained encoder with n-grams."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file

from tests.support.commands import status_of
from tests.support.tiny.training import train_tiny, write_recipe
from training.__main__ import app
from training.checkpoints.label_keys import read_label_keys
from training.datasets import lf_xmc
from training.models.encoder_location import find_encoder
from training.models.ngrams import ngrams_of
from training.models.torch_encoder import load_encoder
from training.models.two_heads import heads_of
from training.recipes import recipe as recipes

HEADS = ("heads.encoder=16", "heads.classifier=12")
UNIDEC = ("system.name=unidec", *HEADS, "encoder.frozen=true", "ngrams.learning_rate=0.05")


@pytest.fixture(scope="module")
def trained(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data, a recipe, and the run `first`, whose encoder has n-grams."""
    folder = tmp_path_factory.mktemp("trained")
    write_recipe(folder, model=model)
    lf_xmc.write(lf_xmc.read(data), folder / "data")
    assert train_tiny(folder, "first", "ngrams.buckets=128", recipe="rae") == 0
    return folder


def table(folder: Path) -> np.ndarray:
    ngrams = ngrams_of(load_encoder(str(folder)).model)
    assert ngrams is not None
    weights: np.ndarray = ngrams.table.weight.detach().numpy()
    return weights


def test_a_runs_folder_stands_for_its_checkpoint(trained: Path) -> None:
    assert find_encoder(str(trained / "first")).name == str(trained / "first/best")
    assert load_encoder(str(trained / "first")).dimension == 32


@pytest.mark.parametrize("ngrams_frozen", [True, False])
def test_heads_and_classifiers_learn_over_a_run(ngrams_frozen: bool, trained: Path) -> None:
    first, name = trained / "first", f"second-{ngrams_frozen}"
    # The recipe's number of buckets is for an encoder without n-grams.
    ngrams = ("ngrams.buckets=64", f"ngrams.frozen={str(ngrams_frozen).lower()}")
    changes = (*UNIDEC, f"encoder.name={first}", *ngrams)
    assert train_tiny(trained, name, *changes, recipe="rae") == 0

    second = trained / name
    before, after = (load_file(r / "best/model.safetensors") for r in (first, second))
    assert all(np.array_equal(before[key], after[key]) for key in before)
    tables = table(first / "best"), table(second / "best")
    assert len(tables[0]) == len(tables[1]) == 128 and np.array_equal(*tables) is ngrams_frozen
    heads = heads_of(load_encoder(str(second / "best")).model)
    assert heads is not None and (heads.encoder, heads.classifier) == (16, 12)
    keys = read_label_keys(second / "best", labels=16)
    assert keys is None or keys.shape == (16, 28)
    facts = orjson.loads((second / "run.json").read_bytes())
    assert facts["settings"]["encoder"]["name"] == str(first)
    assert status_of(app, "score", "--run", second, "--data", trained / "data") == 0


def test_the_shipped_recipe_leaves_the_encoder_as_it_is(trained: Path, tmp_path: Path) -> None:
    recipe = recipes.load("unidec-heads")
    assert recipe.encoder.frozen and recipe.ngrams.frozen and not recipe.ngrams.buckets

    small = (
        "batch.instances=16",
        "batch.cluster_size=4",
        "validation.rows=8",
        "optimizer.epochs=2",
    )
    limits = ("encoder.query_tokens=16", "encoder.label_tokens=16", "system.choose_novel=false")
    # As in the first run, because a process keeps its first run's precision.
    settings = (*small, *limits, *HEADS, "optimizer.precision=fp32")
    places = ("--data", trained / "data", "--out", tmp_path / "run", "--encoder", trained / "first")
    assert status_of(app, "train", "unidec-heads", *places, "--set", *settings) == 0
    assert np.array_equal(table(trained / "first/best"), table(tmp_path / "run/best"))
