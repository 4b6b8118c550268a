"""Fine-tuning by sentence-transformers' own trainer, on a BERT of one layer."""

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datasets", reason="NOT FINE-TUNED: datasets is not installed")
pytest.importorskip("sentence_transformers", reason="NOT FINE-TUNED: no sentence-transformers")

from service.core.types import Role
from tests.support.tiny.training import tiny_dataset, write_tiny_checkpoint
from training import peers
from training.checkpoints.choices import read_choices
from training.evaluation.encode_texts import encode_texts
from training.models.torch_encoder import load_encoder
from training.peers.training_data import peer_training_data

mnrl = peers.load("mnrl")
# The tiny checkpoint is built with the modules' older names, which 5.2 has too.
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


def test_it_learns_and_is_measured_in_both_ways(tmp_path: Path) -> None:
    dataset = tiny_dataset()

    trained = mnrl.train(peer_training_data(dataset), settings(tmp_path), folder=tmp_path / "out")
    found = [result for result, _ in trained.measure(dataset)]

    best = tmp_path / "out" / "best"
    choices = read_choices(best)
    assert choices is not None
    assert (choices.system, found[0].chosen) == ("mnrl", True)
    assert found[0].memorization == choices.memorization
    assert (found[0].depth, found[0].tau) == (choices.depth, choices.tau)
    dual = next(result for result in found if result.memorization == 0.0)
    assert dual.method == "labels only"
    assert dual.metrics["P@1"] > 40.0  # at random: 12.5
    assert found[0].metrics["P@1"] > 60.0


def test_the_same_seed_gives_the_same_encoder(tmp_path: Path) -> None:
    dataset, chosen = tiny_dataset(), settings(tmp_path, steps=5)

    def vectors(name: str, **changes) -> np.ndarray:
        mnrl.train(peer_training_data(dataset), chosen, folder=tmp_path / name)
        encoder = load_encoder(str(tmp_path / name / "best"))
        return encode_texts(encoder, ["red tent", "lamp"], role=Role.QUERY)

    assert (vectors("first") == vectors("again")).all()


def test_pairs_are_those_of_training(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    known = {(text, word) for text in dataset.train.instances.texts for word in text.split()}
    chosen = settings(tmp_path, steps=2)
    encoder = load_encoder(chosen.encoder)

    rows = np.arange(len(dataset.train))
    data = peer_training_data(dataset)
    few = mnrl.text_pairs(data, encoder, chosen, rows=rows)
    every = mnrl.text_pairs(
        peer_training_data(dataset), encoder, settings(tmp_path, steps=99), rows=rows
    )

    drawn = list(zip(few["anchor"], few["positive"], strict=True))
    assert len(drawn) == len(set(drawn)) == 16
    assert set(drawn) < known
    assert set(zip(every["anchor"], every["positive"], strict=True)) == known


def test_rows_that_are_held_out_do_not_train(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    chosen = settings(tmp_path, steps=99, held_out=5)

    slices = mnrl.held_out(peer_training_data(dataset), chosen)
    pairs = mnrl.text_pairs(
        peer_training_data(dataset), load_encoder(chosen.encoder), chosen, rows=slices.kept
    )

    texts = dataset.train.instances.texts
    assert len(slices.held_out) == 5
    assert set(pairs["anchor"]) == {texts[row] for row in slices.kept}


def test_a_budget_of_seconds_ends_training(tmp_path: Path) -> None:
    started = time.perf_counter()
    chosen = settings(tmp_path, steps=1_000_000, seconds=0.5)

    mnrl.train(peer_training_data(tiny_dataset()), chosen, folder=tmp_path / "out")

    assert time.perf_counter() - started < 60.0
