"""OAK: its lookups, its fusion by hand, and its start, learning and files in the training loop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn.functional import normalize

from service.core.errors import InvalidConfig, InvalidData, InvalidInput
from tests.support.tiny.training import (
    losses,
    open_tiny_run,
    tiny_dataset,
    with_colour_metadata,
    write_recipe,
)
from tests.unit.training.systems.conftest import unit
from training.datasets.metadata_links import NO_ITEM
from training.loop.finish import choose_for_inference
from training.loop.trainer import Trainer
from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import ItemVectors, nearest_items, read_item_memory
from training.systems.system import EncodedBatch

DATA = with_colour_metadata(tiny_dataset())
MORE = ("optimizer.head_learning_rate=0.02", "system.attended=2", "system.choose_novel=false")
N, L, M = 48, 16, 8
KEYS = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
QUERIES = np.array([[1, 0], [0, 1]], np.float32)
D = 8
VECTORS, ITEMS = unit(2, D), unit(2, 3, D, seed=1)  # two queries and the items of each
ALL = torch.ones(2, 3, dtype=torch.bool)


def untrained() -> Fusion:
    return Fusion(D, heads=2, hidden=16)


def trained() -> Fusion:
    """Return a fusion with changed weights, as after training."""
    torch.manual_seed(0)
    fusion = untrained()
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return fusion


def test_the_best_of_many_are_those_of_a_full_sort() -> None:
    """Of equal items the first counts; missing ones are marked."""
    chance = np.random.default_rng(5)
    keys = chance.integers(-2, 3, (60, 4)).astype(np.float32)  # with many ties
    queries = chance.integers(-2, 3, (50, 4)).astype(np.float32)
    for count in (1, 7, 59, 60, 61):
        order = np.argsort(-(queries @ keys.T), axis=1, kind="stable")[:, :count]
        missing = np.full((len(queries), max(0, count - len(keys))), NO_ITEM)
        found = nearest_items(queries, keys, count=count)
        assert found.tolist() == np.hstack([order, missing]).tolist()
    assert nearest_items(queries[:1], keys[:0], count=2).tolist() == [[NO_ITEM, NO_ITEM]]


def test_given_items_take_the_place_of_predicted_ones() -> None:
    fusion = Fusion(2, heads=1, hidden=2)
    fusion.out.weight.data.copy_(fusion.value.weight.data)  # adds an item's value to the query
    memory = ItemVectors(keys=KEYS, values=KEYS, attended=1, fusion=fusion)

    assert np.allclose(memory.fused(QUERIES), QUERIES, atol=1e-6), "the query's own direction"
    given = memory.fused(QUERIES, np.array([[1], [NO_ITEM]]))
    assert np.allclose(given, [[0.5**0.5, 0.5**0.5], [0, 1]], atol=1e-6)


def test_a_head_reads_items_by_their_similarity() -> None:
    fusion = untrained()
    fusion.out.weight.data.copy_(torch.eye(D))  # adds to the query what its heads read

    read = torch.zeros_like(VECTORS)
    for half in (slice(D // 2), slice(D // 2, D)):
        logits = 20.0 * torch.einsum("nd,nmd->nm", VECTORS[:, half], ITEMS[:, :, half])
        shares = torch.softmax(logits, dim=1)  # c = 10, times 2 heads
        read[:, half] = torch.einsum("nm,nmd->nd", shares, ITEMS[:, :, half])
    expected = normalize(VECTORS + read, dim=-1)
    assert torch.allclose(fusion(VECTORS, ITEMS, ALL), expected, atol=1e-5)


def test_masked_items_are_not_read_and_a_query_without_items_stays() -> None:
    fusion, mask = trained(), torch.tensor([[True, False, True], [False, False, False]])
    fused = fusion(VECTORS, ITEMS, mask)

    fewer = fusion(VECTORS[:1], ITEMS[:1, [0, 2]], ALL[:1, :2])
    assert torch.allclose(fused[:1], fewer, atol=1e-6)
    assert torch.equal(fused[1], VECTORS[1])
    assert not torch.allclose(fused[0], VECTORS[0], atol=0.01)


def test_fused_vectors_have_length_one_and_do_not_depend_on_the_items_order() -> None:
    fusion = trained()
    fused = fusion(VECTORS, ITEMS, ALL).detach()
    np.testing.assert_allclose(fused.norm(dim=-1), 1.0, atol=1e-6)
    assert torch.allclose(fusion(VECTORS, ITEMS.flip(1), ALL), fused, atol=1e-6)


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
