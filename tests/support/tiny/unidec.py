"""UniDEC on tiny data: its recipe, and a bundle that is trained on a catalog with torch."""

from dataclasses import replace
from pathlib import Path

from export.__main__ import app as export
from service.core.bundle.bundle import open_bundle
from tests.support.commands import status_of
from tests.support.tiny.bundles import Catalogue
from tests.support.tiny.export import tiny_dataset
from tests.support.tiny.training import write_tiny_checkpoint
from training.__main__ import app as training
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Split, Texts

RECIPE = """
[encoder]
name = "{model}"
[heads]
encoder = 16
classifier = 12
learning_rate = 5e-3
[batch]
instances = 16
positives = 2
[optimizer]
steps = 12
learning_rate = 1e-3
head_learning_rate = 0.05
precision = "fp32"
[validation]
rows = 8
every = 12
[system]
name = "unidec"
"""


def write_unidec_recipe(folder: Path, *, model: Path) -> Path:
    """Write a recipe of twelve steps that validates after the last one."""
    recipe = folder / "unidec.toml"
    recipe.write_text(RECIPE.format(model=model))
    return recipe


def make_unidec_bundle(folder: Path, catalogue: Catalogue) -> Path:
    """Train, choose and export below `folder`; the bundle holds the whole catalog."""
    lf_xmc.write(_dataset(catalogue), folder / "data")
    model = write_tiny_checkpoint(folder, dropout=0.0)
    recipe, data = write_unidec_recipe(folder, model=model), ("--data", folder / "data")
    short = ("--set", "optimizer.steps=8", "validation.every=8")
    assert status_of(training, "train", recipe, *data, "--out", folder / "run", *short) == 0
    places = ("--encoder", folder / "run/best", "--out", folder / "shelf/outdoor")
    options = ("--quantize", "none", "--memorization", "0.5", "--depth", "10", "--hold-out-test")
    assert status_of(export, "bundle", *data, *places, *options) == 0
    assert open_bundle(folder / "shelf/outdoor").novel is not None, "a bundle with classifiers"
    return folder / "shelf/outdoor"


def _dataset(catalogue: Catalogue) -> Dataset:
    """Return the catalog's queries as training rows, and one other query as test row."""
    dataset = tiny_dataset(catalogue)
    other = Split(
        instances=Texts(uids=("something else",), texts=("something else",)),
        labels_of=dataset.train.labels_of[:1],
        filtered=dataset.train.filtered[:1],
    )
    return replace(dataset, test=other)
