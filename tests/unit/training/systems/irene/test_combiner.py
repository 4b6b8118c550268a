"""Every combiner returns unit vectors, ignores empty places, and starts as the text's vector."""

import pytest
import torch
from torch.nn.functional import normalize

from training.systems.irene.combiner import Combiner, Kind, make_combiner

KINDS: tuple[Kind, ...] = ("attention", "transformer", "sum", "weighted-sum", "max")
N, M, D = 5, 3, 16


def combiner(kind: Kind, *, residual: bool = True) -> Combiner:
    torch.manual_seed(0)
    made = make_combiner(kind, D, places=M, heads=4, dropout=0.1, residual=residual)
    return made.eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    texts = normalize(torch.randn(N, D, generator=generator), dim=-1)
    return texts, normalize(torch.randn(N, M, D, generator=generator), dim=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_have_length_one(kind: Kind) -> None:
    texts, classifiers = inputs()
    for present in (torch.ones(N, M, dtype=bool), torch.zeros(N, M, dtype=bool)):
        found = combiner(kind)(texts, classifiers, present)
        assert found.norm(dim=-1).tolist() == pytest.approx([1.0] * N)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_an_empty_place_is_of_no_matter(kind: Kind) -> None:
    texts, classifiers = inputs()
    present = torch.tensor([[True, False, False]] * N)
    other = classifiers.clone()
    other[:, 1:] = 7.0
    model = combiner(kind, residual=False)
    assert torch.allclose(model(texts, classifiers, present), model(texts, other, present))


@pytest.mark.parametrize("kind", ["attention", "transformer"])
def test_training_begins_with_the_text(kind: Kind) -> None:
    texts, classifiers = inputs()
    found = combiner(kind)(texts, classifiers, torch.ones(N, M, dtype=bool))
    assert torch.allclose(found, texts, atol=1e-6)


def test_the_order_of_the_associated_is_of_no_matter() -> None:
    texts, classifiers = inputs()
    model, present = combiner("attention", residual=False), torch.ones(N, M, dtype=bool)
    assert torch.allclose(
        model(texts, classifiers, present), model(texts, classifiers.flip(1), present), atol=1e-6
    )


def test_sum_and_max_by_hand() -> None:
    texts = torch.tensor([[3.0, 0.0]])
    classifiers = torch.tensor([[[1.0, 3.0], [9.0, 9.0], [9.0, 9.0]]])
    present = torch.tensor([[True, False, False]])
    made = make_combiner("sum", 2, places=3, heads=1, dropout=0.0, residual=True)
    assert made(texts, classifiers, present).tolist() == [pytest.approx([0.8, 0.6])]
    made = make_combiner("max", 2, places=3, heads=1, dropout=0.0, residual=True)
    assert made.combine(texts, classifiers, present).tolist() == [[3.0, 3.0]]
