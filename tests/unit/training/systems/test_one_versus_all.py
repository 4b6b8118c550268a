"""One-versus-all: half-precision products equal full-precision ones up to rounding."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.support.tiny.training import losses, open_tiny_run, write_recipe
from training.systems import one_versus_all
from training.systems.one_versus_all import similarities


@pytest.fixture
def vectors() -> torch.Tensor:
    made = torch.randn(7, 64, generator=torch.Generator().manual_seed(3))
    return normalize(made, dim=-1)


def test_products_in_half_precision_have_the_gradients_of_full_precision(
    vectors: torch.Tensor,
) -> None:
    products, gradients = [], []
    for precision in (torch.float32, torch.bfloat16):
        leaf = vectors.clone().requires_grad_()
        made = similarities(instances=leaf[:3], classifiers=leaf[3:], precision=precision)
        (made * torch.arange(12.0).reshape(3, 4)).sum().backward()
        assert made.dtype == torch.float32 and leaf.grad is not None
        products.append(made.detach())
        gradients.append(leaf.grad)

    np.testing.assert_allclose(products[0], vectors[:3] @ vectors[3:].T, atol=1e-6)
    np.testing.assert_allclose(products[1], products[0], atol=0.01)
    np.testing.assert_allclose(gradients[1], gradients[0], atol=0.2)
    assert not torch.equal(products[0], products[1])


@pytest.mark.parametrize("hardware", ["bf16", "fp16", "fp32"])
def test_renees_classifiers_learn_on_any_hardware(
    hardware: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_versus_all, "supported_precision", lambda precision: hardware)
    recipe, run = write_recipe(tmp_path, model=model, system="one-versus-all"), tmp_path / "run"
    renee = ("batch.pool=all", "system.initial=labels", "system.hybrid_precision=true")
    steps = ("optimizer.steps=24", "validation.every=24", "optimizer.head_learning_rate=0.02")
    trainer = open_tiny_run(recipe, run, *renee, *steps)
    trainer.train()

    course = losses(run)
    assert np.mean(course[-5:]) < 0.8 * np.mean(course[:5])
    assert trainer.model.system.head.weight.dtype == torch.float32
