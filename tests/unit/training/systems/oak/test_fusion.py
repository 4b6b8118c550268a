"""OAK's combiner starts as the identity, computes attention as by hand, and obeys its mask."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from training.systems.oak.fusion import Fusion  # noqa: E402

DIMENSION = 8


def unit(*shape: int, seed: int = 0) -> "torch.Tensor":
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def trained() -> Fusion:
    """Return a fusion with changed weights, as after training."""
    torch.manual_seed(0)
    fusion = Fusion(DIMENSION, heads=2, hidden=16)
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return fusion


def test_before_training_a_query_is_not_changed() -> None:
    queries, items = unit(3, DIMENSION), unit(3, 2, DIMENSION, seed=1)
    fused = Fusion(DIMENSION, heads=2, hidden=16)(queries, items, torch.ones(3, 2, dtype=bool))
    assert torch.allclose(fused, queries, atol=1e-6)


def test_a_head_reads_items_by_their_similarity() -> None:
    queries, items = unit(1, DIMENSION), unit(1, 3, DIMENSION, seed=1)
    fusion = Fusion(DIMENSION, heads=2, hidden=16)
    shares = fusion.attention(queries, items, torch.ones(1, 3, dtype=bool))

    half = DIMENSION // 2
    logits = 20.0 * (queries[0, :half] * items[0, :, :half]).sum(-1)  # c = 10, times 2 heads
    expected = torch.exp(logits) / torch.exp(logits).sum()
    assert torch.allclose(shares[0, 0], expected, atol=1e-5)


def test_masked_items_are_not_read_and_a_query_without_items_stays() -> None:
    queries, items, fusion = unit(2, DIMENSION), unit(2, 3, DIMENSION, seed=1), trained()
    mask = torch.tensor([[True, False, True], [False, False, False]])
    fused = fusion(queries, items, mask)

    fewer = fusion(queries[:1], items[:1, [0, 2]], torch.ones(1, 2, dtype=bool))
    assert torch.allclose(fused[:1], fewer, atol=1e-6)
    assert torch.equal(fused[1], queries[1])
    assert not torch.allclose(fused[0], queries[0], atol=0.01)


def test_fused_vectors_have_length_one_and_do_not_depend_on_the_items_order() -> None:
    queries, items, fusion = unit(4, DIMENSION), unit(4, 3, DIMENSION, seed=1), trained()
    mask = torch.ones(4, 3, dtype=bool)
    fused = fusion(queries, items, mask).detach()
    np.testing.assert_allclose(fused.norm(dim=-1), 1.0, atol=1e-6)
    assert torch.allclose(fusion(queries, items.flip(1), mask), fused, atol=1e-6)
