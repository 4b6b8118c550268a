"""The losses of a distillation, against values computed by hand."""

import numpy as np
import pytest
import torch

from training.distillation.losses import cosine_distance, similarity_divergence

EAST, NORTH = (1.0, 0.0), (0.0, 1.0)


def test_the_distance_is_half_the_squared_one() -> None:
    student, teacher = torch.tensor([EAST, EAST]), torch.tensor([EAST, NORTH])
    assert cosine_distance(student=student, teacher=teacher) == pytest.approx((0 + 1) / 2)
    assert ((student - teacher) ** 2).sum(dim=1).mean() / 2 == pytest.approx(0.5)


def test_the_divergence_of_two_similarities() -> None:
    """With tau 1, p of the teacher is softmax(1, 0), and p of the student softmax(0, 1)."""
    e = np.e
    near, far = e / (1 + e), 1 / (1 + e)
    expected = near * np.log(near / far) + far * np.log(far / near)
    divergence = similarity_divergence(
        student=torch.tensor([NORTH]),
        teacher=torch.tensor([EAST]),
        keys=torch.tensor([EAST, NORTH]),
        tau=1.0,
    )
    assert float(divergence) == pytest.approx(expected, rel=1e-5)


def test_equal_vectors_do_not_diverge() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(5, 8), dim=1)
    divergence = similarity_divergence(student=vectors, teacher=vectors, keys=vectors, tau=0.05)
    assert float(divergence) == pytest.approx(0.0, abs=1e-6)
