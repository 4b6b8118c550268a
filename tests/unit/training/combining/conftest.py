"""Two runs on the tiny data set that hold out the same rows, and the recipe of both."""

from pathlib import Path

import pytest

from tests.support.tiny.training import LOOP_RECIPE, train_tiny
from training.datasets import lf_xmc


@pytest.fixture(scope="session")
def runs(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `rae` and `supcon`, which tests must not change, and their recipe."""
    folder = tmp_path_factory.mktemp("combined")
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
