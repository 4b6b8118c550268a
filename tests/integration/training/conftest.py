"""Runs on the tiny data set with metadata; each is trained once and shared by the tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny.training import (
    tiny_dataset,
    train_tiny,
    with_colour_metadata,
    write_recipe,
    write_tiny_checkpoint,
    write_tiny_language_model,
)
from training.datasets import lf_xmc

OAK = ("optimizer.head_learning_rate=0.02", "system.attended=2", "system.choose_novel=false")
LANGUAGE_MODEL = (
    "encoder.name={folder}/llama",
    "encoder.pooling=last-token",
    "lora.rank=4",
    "lora.dropout=0.1",
    "metadata.append=both",
    "optimizer.learning_rate=3e-3",
    "validation.mixing=[0.5, 1.0]",
    "validation.untrained=false",
)
GUIDED = "guidance.oracle={folder}/oracle"
SETTINGS = {  # run -> system and changes to the recipe
    "oracle": ("ngame", ("metadata.append=both",)),
    "alone": ("ngame", ()),
    "guided": ("ngame", (GUIDED,)),
    "language-model": ("ngame", LANGUAGE_MODEL),
    "guided-by-language-model": ("ngame", ("guidance.oracle={folder}/language-model",)),
    "oak": ("oak", OAK),
    "oak-guided": ("oak", (*OAK, GUIDED)),
}

Runs = Callable[..., Path]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """`runs(*names)` trains missing runs and returns the folder of all runs and of `data`."""
    folder = tmp_path_factory.mktemp("runs")
    lf_xmc.write(with_colour_metadata(tiny_dataset()), folder / "data")
    model = write_tiny_checkpoint(folder, dropout=0.0)
    write_tiny_language_model(folder)
    for system in ("oak", "ngame"):
        write_recipe(folder, model=model, system=system)

    def trained(*names: str) -> Path:
        for name in names:
            if not (folder / name).exists():
                system, settings = SETTINGS[name]
                given = [setting.format(folder=folder) for setting in settings]
                assert train_tiny(folder, name, *given, recipe=system) == 0
        return folder

    return trained
