"""What the commands' tests train on."""

from pathlib import Path

import pytest

from tests.support.tiny_training import tiny_dataset, write_tiny_checkpoint
from training.datasets import lf_xmc


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to begin with; to be read only."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set's folder; to be read only."""
    folder = tmp_path_factory.mktemp("data") / "colours"
    lf_xmc.write(tiny_dataset(), folder)
    return folder
