"""OAK in the training loop: its start, its learning, its lookups, and its files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from service.core.errors import InvalidConfig, InvalidData, InvalidInput
from tests.support.tiny.training import (
    losses,
    open_tiny_run,
    tiny_dataset,
    with_colour_metadata,
    write_recipe,
)
from training.loop.finish import choose_for_inference
from training.loop.trainer import Trainer
from training.systems.oak.memory import nearest_items, read_item_memory
from training.systems.system import EncodedBatch

DATA = with_colour_metadata(tiny_dataset())
MORE = ("optimizer.head_learning_rate=0.02", "system.attended=2", "system.choose_novel=false")
N, L, M = 48, 16, 8


def silent(done: int, total: int) -> None:
    """Show no progress."""


@pytest.fixture
def recipe(model: Path, tmp_path: Path) -> Path:
    return write_recipe(tmp_path, model=model, system="oak")


def opened(recipe: Path, *changes: str) -> Trainer:
    return open_tiny_run(recipe, recipe.parent / "run", *MORE, *changes, dataset=DATA)


@pytest.mark.parametrize("loss", ["triplet", "contrast"])
def test_before_training_it_is_the_encoder(recipe: Path, loss: str) -> None:
    trainer = opened(recipe, f"system.loss={loss}")
    model, batch = trainer.model, trainer.batches.batch(0)
    keys, _ = model.memory_keys(silent)
    np.testing.assert_allclose(keys, model.embedder.vectors(np.arange(N)), atol=1e-5)

    texts = model.texts_of(batch)
    items = texts[len(batch.rows) + len(batch.pool) :] - (N + L)
    attended = model.system.head.attended[batch.rows]
    assert items.tolist() == sorted(set(attended.flatten().tolist())), "those of its instances"

    vectors = model.embedder.embed(texts)
    plain = EncodedBatch.from_vectors(batch, vectors)
    instances, labels = model.system.text_vectors(plain)
    assert torch.allclose(instances, plain.instances, atol=1e-5)
    assert torch.allclose(labels, plain.labels, atol=1e-5)
    assert torch.isfinite(model.loss_of(batch)(vectors))


def test_training_moves_fusion_bank_and_labels_and_is_read_again(recipe: Path) -> None:
    trainer = opened(recipe, "optimizer.steps=30", "validation.every=30")
    trainer.train()
    seen = losses(recipe.parent / "run")
    assert np.mean(seen[-5:]) < np.mean(seen[:5])
    head = trainer.model.system.head
    for moved in (head.fusion.out.weight, head.residuals, head.weight):
        assert moved.detach().abs().max() > 1e-4

    _, finished = choose_for_inference(trainer, console=Console(quiet=True))
    assert finished is not None
    vectors = trainer.model.embedder.vectors(np.arange(N + L + M))
    assert np.abs(finished.instances - vectors[:N]).max() > 0.01
    memory = read_item_memory(trainer.best, vectors[N + L :])
    np.testing.assert_allclose(memory.fused(vectors[:N]), finished.instances, atol=1e-5)
    with pytest.raises(InvalidData, match=r"take the data set of the run"):
        read_item_memory(trainer.best, vectors[60:])


def test_items_are_predicted_anew_at_a_refresh_unless_the_data_link_them(recipe: Path) -> None:
    model = opened(recipe).model
    model.system.head.attended.fill_(-1)
    model.neighbours(silent)
    vectors = model.embedder.vectors(np.arange(N + L + M))
    expected = nearest_items(vectors[:N], vectors[N + L :], count=2)
    assert model.system.head.attended.tolist() == expected.tolist()

    model = opened(recipe, "system.metadata=linked").model
    model.neighbours(silent)
    linked = DATA.train.metadata_of.toarray().argmax(axis=1)
    assert model.system.head.attended[:, 0].tolist() == linked.tolist()
    assert model.system.head.attended[:, 1].tolist() == [-1] * N


def test_data_without_metadata_and_wrong_heads_are_refused(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="reads metadata items, and data set colours has none"):
        open_tiny_run(recipe, tmp_path / "none")
    with pytest.raises(InvalidConfig, match="heads must divide"):
        opened(recipe, "system.heads=5")
