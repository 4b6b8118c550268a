"""Fine-tuning by sentence-transformers' own trainer, on a BERT of one layer."""

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datasets", reason="NOT FINE-TUNED: datasets is not installed")
pytest.importorskip("sentence_transformers", reason="NOT FINE-TUNED: no sentence-transformers")

from service.core.types import Role
from tests.support.tiny.training import tiny_dataset, write_tiny_checkpoint
from training.checkpoints.choices import read_choices
from training.evaluation.encode_texts import encode_texts
from training.lab import peers
from training.lab.peers import peer_training_data
from training.models.torch_encoder import load_encoder

mnrl = peers.load("mnrl")
# The tiny checkpoint uses older module names, which version 5.2 still accepts with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:Importing from 'sentence_transformers.models'")


def settings(folder: Path, **changes):
    checkpoint = write_tiny_checkpoint(folder / "checkpoint", dropout=0.0)
    return mnrl.Settings(
        **{
            "encoder": str(checkpoint),
            "tokens": 16,
            "batch": 8,
            "steps": 60,
            "learning_rate": 3e-3,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mnrl")


@pytest.fixture(scope="module")
def fitted(folder: Path):
    """An encoder that was trained for sixty steps."""
    data = peer_training_data(tiny_dataset())
    return mnrl.train(data, settings(folder), folder=folder / "fitted")


def test_it_learns_and_is_measured_in_both_ways(fitted) -> None:
    found = [result for result, _ in fitted.measure(tiny_dataset())]

    choices = read_choices(fitted.folder)
    assert choices is not None
    assert (choices.system, found[0].chosen) == ("mnrl", True)
    assert found[0].memorization == choices.memorization
    assert (found[0].depth, found[0].tau) == (choices.depth, choices.tau)
    dual = next(result for result in found if result.memorization == 0.0)
    assert dual.method == "labels only"
    assert dual.metrics["P@1"] > 40.0  # at random: 12.5
    assert found[0].metrics["P@1"] > 60.0


def test_the_same_seed_gives_the_same_encoder(fitted, folder: Path) -> None:
    data = peer_training_data(tiny_dataset())
    again = mnrl.train(data, settings(folder), folder=folder / "again")

    def vectors(model: Path) -> np.ndarray:
        return encode_texts(load_encoder(str(model)), ["red tent", "lamp"], role=Role.QUERY)

    assert (vectors(fitted.folder) == vectors(again.folder)).all()


def test_pairs_are_those_of_training_rows_that_are_not_held_out(folder: Path) -> None:
    dataset = tiny_dataset()
    known = {(text, word) for text in dataset.train.instances.texts for word in text.split()}
    chosen = settings(folder, steps=2)
    encoder = load_encoder(chosen.encoder)

    rows = np.arange(len(dataset.train))
    data = peer_training_data(dataset)
    few = mnrl.text_pairs(data, encoder, chosen, rows=rows)
    every = mnrl.text_pairs(data, encoder, settings(folder, steps=99), rows=rows)

    drawn = list(zip(few["anchor"], few["positive"], strict=True))
    assert len(drawn) == len(set(drawn)) == 16
    assert set(drawn) < known
    assert set(zip(every["anchor"], every["positive"], strict=True)) == known

    slices = mnrl.held_out(data, settings(folder, steps=99, held_out=5))
    pairs = mnrl.text_pairs(data, encoder, settings(folder, steps=99), rows=slices.kept)
    assert len(slices.held_out) == 5
    assert set(pairs["anchor"]) == {dataset.train.instances.texts[row] for row in slices.kept}


def test_a_budget_of_seconds_ends_training(folder: Path) -> None:
    started = time.perf_counter()
    chosen = settings(folder, steps=1_000_000, seconds=0.5)

    mnrl.train(peer_training_data(tiny_dataset()), chosen, folder=folder / "short")

    assert time.perf_counter() - started < 60.0
