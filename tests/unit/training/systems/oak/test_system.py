"""OAK in the training loop: its start, its learning, its lookups, and its files."""

from pathlib import Path
from signal import SIGINT

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from service.command_line import Interrupted  # noqa: E402
from service.core.errors import InvalidConfig, InvalidData, InvalidInput  # noqa: E402
from tests.support.tiny.training import (  # noqa: E402
    last_weights,
    losses,
    open_tiny_run,
    tiny_dataset,
    with_colour_metadata,
    write_recipe,
)
from training.loop.finish import choose_for_inference  # noqa: E402
from training.loop.trainer import Trainer  # noqa: E402
from training.systems.oak.memory import nearest_items, read_item_memory  # noqa: E402
from training.systems.system import EncodedBatch  # noqa: E402

DATA = with_colour_metadata(tiny_dataset())
MORE = ("optimizer.head_learning_rate=0.02", "system.attended=2", "system.choose_novel=false")


def silent(done: int, total: int) -> None:
    """Show no progress."""


@pytest.fixture
def recipe(model: Path, tmp_path: Path) -> Path:
    return write_recipe(tmp_path, model=model, system="oak")


def opened(recipe: Path, folder: Path, *changes: str, resume: bool = False) -> Trainer:
    return open_tiny_run(recipe, folder, *MORE, *changes, resume=resume, dataset=DATA)


@pytest.mark.parametrize("loss", ["triplet", "contrast"])
def test_before_training_it_is_the_encoder(recipe: Path, tmp_path: Path, loss: str) -> None:
    trainer = opened(recipe, tmp_path / "run", f"system.loss={loss}")
    model, batch = trainer.model, trainer.batches.batch(0)
    encoded = model.embedder.vectors(np.arange(48))
    keys, _ = model.memory_keys(silent)
    np.testing.assert_allclose(keys, encoded, atol=1e-5)

    vectors = model.embedder.embed(model.texts_of(batch))
    plain = EncodedBatch.from_vectors(batch, vectors)
    instances, labels = model.system.text_vectors(plain)
    assert torch.allclose(instances, plain.instances, atol=1e-5)
    assert torch.allclose(labels, plain.labels, atol=1e-5)
    assert torch.isfinite(model.loss_of(batch)(vectors))


def test_training_moves_fusion_bank_and_labels(recipe: Path, tmp_path: Path) -> None:
    trainer = opened(recipe, tmp_path / "run", "optimizer.steps=30", "validation.every=30")
    trainer.train()
    seen = losses(tmp_path / "run")
    assert np.mean(seen[-5:]) < np.mean(seen[:5])
    head = trainer.model.system.head
    for moved in (head.fusion.out.weight, head.residuals, head.weight):
        assert moved.detach().abs().max() > 1e-4
    keys, _ = trainer.model.memory_keys(silent)
    assert np.abs(keys - trainer.model.embedder.vectors(np.arange(48))).max() > 0.01


def test_a_batch_encodes_the_items_of_its_instances(recipe: Path, tmp_path: Path) -> None:
    model = opened(recipe, tmp_path / "run").model
    batch = opened(recipe, tmp_path / "run").batches.batch(0)
    texts = model.texts_of(batch)
    items = texts[len(batch.rows) + len(batch.pool) :] - (48 + 16)
    attended = model.system.head.attended[batch.rows]
    assert items.tolist() == sorted(set(attended.flatten().tolist()))


def test_items_are_predicted_anew_at_a_refresh(recipe: Path, tmp_path: Path) -> None:
    model = opened(recipe, tmp_path / "run").model
    model.system.head.attended.fill_(-1)
    model.neighbours(silent)
    vectors = model.embedder.vectors(np.arange(48 + 16 + 8))
    expected = nearest_items(vectors[:48], vectors[64:], count=2)
    assert model.system.head.attended.tolist() == expected.tolist()


def test_linked_items_stay_those_of_the_data(recipe: Path, tmp_path: Path) -> None:
    model = opened(recipe, tmp_path / "run", "system.metadata=linked").model
    linked = DATA.train.metadata_of.toarray().argmax(axis=1)
    model.neighbours(silent)
    assert model.system.head.attended[:, 0].tolist() == linked.tolist()
    assert model.system.head.attended[:, 1].tolist() == [-1] * 48


def test_a_resumed_run_ends_as_one_that_never_stopped(recipe: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    refresh = ("batch.order=clustered", "batch.cluster_size=4", "refresh.every=3")
    opened(recipe, whole, *refresh).train()
    first = opened(recipe, parts, *refresh)
    take_step = first.take_step

    def interrupted(step: int) -> None:
        take_step(step)
        if step == 4:
            first.interruption.number = SIGINT

    first.take_step = interrupted
    with pytest.raises(Interrupted):
        first.train()
    opened(recipe, parts, *refresh, resume=True).train()

    ours, theirs = last_weights(parts), last_weights(whole)
    assert ours.keys() == theirs.keys() and any("attended" in name for name in ours)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_the_item_memory_is_read_as_it_was_trained(recipe: Path, tmp_path: Path) -> None:
    trainer = opened(recipe, tmp_path / "run", "optimizer.steps=20", "validation.every=20")
    trainer.train()
    _, finished = choose_for_inference(trainer, console=Console(quiet=True))
    assert finished is not None

    vectors = trainer.model.embedder.vectors(np.arange(48 + 16 + 8))
    memory = read_item_memory(trainer.best, vectors[64:])
    np.testing.assert_allclose(memory.fused(vectors[:48]), finished.instances, atol=1e-5)
    with pytest.raises(InvalidData, match=r"take the data set of the run"):
        read_item_memory(trainer.best, vectors[60:])


def test_data_without_metadata_and_wrong_heads_are_refused(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="reads metadata items, and data set colours has none"):
        open_tiny_run(recipe, tmp_path / "none")
    with pytest.raises(InvalidConfig, match="heads must divide"):
        opened(recipe, tmp_path / "heads", "system.heads=5")
