"""The checkpoint and the data set that tests train on, and two runs with them."""

from pathlib import Path

import pytest

from tests.support.tiny.training import (
    LOOP_RECIPE,
    tiny_dataset,
    train_tiny,
    write_tiny_checkpoint,
)
from training.datasets import lf_xmc


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint; tests must not change it."""
    import torch

    torch.set_num_threads(1)  # for such small matrices, more threads only wait for each other
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set's folder; tests must not change it."""
    folder = tmp_path_factory.mktemp("data") / "colours"
    lf_xmc.write(tiny_dataset(), folder)
    return folder


@pytest.fixture(scope="session")
def two_runs(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe and the runs `rae` and `supcon`, which hold out the same rows.

    Tests must not change it.
    """
    folder = tmp_path_factory.mktemp("two-runs")
    (folder / "ngrams.toml").write_text(
        LOOP_RECIPE.format(model=model, system="rae").replace(
            "[batch]", "[ngrams]\nbuckets = 128\n[batch]"
        )
    )
    lf_xmc.write(lf_xmc.read(data), folder / "data")
    assert train_tiny(folder, "rae", "optimizer.steps=8", recipe="ngrams") == 0
    changes = ("system.name=supcon-de", "optimizer.learning_rate=0.01")
    assert train_tiny(folder, "supcon", *changes, recipe="ngrams") == 0
    return folder
