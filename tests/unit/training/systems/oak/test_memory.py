"""OAK's lookups and its fusion, which starts as the identity and obeys its mask."""

import numpy as np
import torch
from torch.nn.functional import normalize

from tests.unit.training.systems.conftest import unit
from training.datasets.metadata_links import NO_ITEM
from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import ItemVectors, nearest_items

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


def test_the_most_similar_items_come_first() -> None:
    assert nearest_items(QUERIES, KEYS, count=2).tolist() == [[0, 2], [1, 2]]


def test_of_equal_items_the_first_counts_and_missing_ones_are_marked() -> None:
    same = np.array([[1, 0], [1, 0]], np.float32)
    assert nearest_items(QUERIES[:1], same, count=3).tolist() == [[0, 1, NO_ITEM]]


def test_the_best_of_many_are_those_of_a_full_sort() -> None:
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


def test_before_training_a_query_is_not_changed() -> None:
    assert torch.allclose(untrained()(VECTORS, ITEMS, ALL), VECTORS, atol=1e-6)


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
