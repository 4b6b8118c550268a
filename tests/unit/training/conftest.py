"""The checkpoint and the data set that tests train on."""

from pathlib import Path

import pytest

from tests.support.tiny.training import tiny_dataset, write_tiny_checkpoint
from training.datasets import lf_xmc


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint; tests must not change it."""
    import torch

    torch.set_num_threads(1)  # more only wait for each other over such small matrices
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set's folder; tests must not change it."""
    folder = tmp_path_factory.mktemp("data") / "colours"
    lf_xmc.write(tiny_dataset(), folder)
    return folder
