"""IRENE: combiners of any kind, and the choice of a seen label's neighbors."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from tests.unit.training.systems.conftest import unit
from training.systems.irene.combiner import Combiner, Kind, make_combiner
from training.systems.irene.system import associations

KINDS: tuple[Kind, ...] = ("attention", "transformer", "sum", "weighted-sum", "max")
N, M, D = 5, 3, 16
TEXTS, CLASSIFIERS = unit(N, D), unit(N, M, D, seed=1)
ALL = torch.ones(N, M, dtype=torch.bool)


def combiner(kind: Kind, *, residual: bool = True, dimension: int = D) -> Combiner:
    torch.manual_seed(0)
    made = make_combiner(kind, dimension, places=M, heads=4, dropout=0.1, residual=residual)
    return made.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_have_length_one_whatever_stands_in_an_empty_place(kind: Kind) -> None:
    for present in (ALL, ~ALL):
        found = combiner(kind)(TEXTS, CLASSIFIERS, present)
        assert found.norm(dim=-1).tolist() == pytest.approx([1.0] * N)
    present = torch.tensor([[True, False, False]] * N)
    other = CLASSIFIERS.clone()
    other[:, 1:] = 7.0
    model = combiner(kind, residual=False)
    assert torch.allclose(model(TEXTS, CLASSIFIERS, present), model(TEXTS, other, present))


@pytest.mark.parametrize("kind", ["attention", "transformer"])
def test_training_begins_with_the_text_and_the_associateds_order_is_of_no_matter(
    kind: Kind,
) -> None:
    assert torch.allclose(combiner(kind)(TEXTS, CLASSIFIERS, ALL), TEXTS, atol=1e-6)
    model = combiner(kind, residual=False)
    combined, turned = model(TEXTS, CLASSIFIERS, ALL), model(TEXTS, CLASSIFIERS.flip(1), ALL)
    assert torch.allclose(combined, turned, atol=1e-6)


def test_sum_and_max_by_hand() -> None:
    texts = torch.tensor([[3.0, 0.0]])
    classifiers = torch.tensor([[[1.0, 3.0], [9.0, 9.0], [9.0, 9.0]]])
    given = (texts, classifiers, torch.tensor([[True, False, False]]))
    assert combiner("sum", dimension=2)(*given).tolist() == [pytest.approx([0.8, 0.6])]
    assert combiner("max", dimension=2).combine(*given).tolist() == [[3.0, 3.0]]


def test_of_those_that_share_a_row_the_nearest_by_text() -> None:
    rows = [[0, 1, 2, 3], [0, 4], [5]]
    y = np.zeros((3, 6), np.float32)
    for row, labels in enumerate(rows):
        y[row, labels] = 1.0
    angles = np.array([0.0, 0.5, 0.1, 0.3, 0.2, 0.0])
    texts = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    found = associations(labels_of=csr_matrix(y), texts=texts, count=3)

    assert found[0].tolist() == [2, 4, 3]
    assert found[4].tolist() == [0, -1, -1], "never itself"
    assert found[5].tolist() == [-1, -1, -1], "label 0 has the same text, and no row in common"


def test_blocks_do_not_show() -> None:
    rng = np.random.default_rng(0)
    y = csr_matrix((rng.random((80, 600)) < 0.02).astype(np.float32))
    texts = unit(600, 8).numpy()

    found = associations(labels_of=y, texts=texts, count=3)

    shared = (y.T @ y).toarray()
    np.fill_diagonal(shared, 0)
    for label in (0, 255, 256, 599):
        company = np.flatnonzero(shared[label])
        nearest = company[np.argsort(-(texts[company] @ texts[label]))][:3]
        assert found[label][: len(nearest)].tolist() == nearest.tolist()
