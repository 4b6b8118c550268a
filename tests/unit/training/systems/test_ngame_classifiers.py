"""NGAME's second stage: its loss by hand, its frozen parts, and keys for the fused score."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from service.core.errors import InvalidConfig
from tests.support.tiny.training import open_tiny_run, write_recipe
from tests.unit.training.systems.conftest import (
    ENCODER,
    POSITIVES,
    batch_of,
    two_headed_task,
)
from training.models.two_heads import with_share
from training.systems.losses import triplet
from training.systems.ngame_classifiers import NgameClassifiers, Settings, build
from training.systems.system import EncodedBatch

Make = Callable[..., NgameClassifiers]


@pytest.fixture
def make(vectors: torch.Tensor) -> Make:
    def made(**settings: object) -> NgameClassifiers:
        return build(Settings(**settings), two_headed_task(vectors, activation="none"))

    return made


def batch(vectors: torch.Tensor) -> EncodedBatch:
    return batch_of(vectors[:2], vectors[2:])


def triplets(scores: torch.Tensor, *, margin: float, hardest: int) -> float:
    masks = {"sampled": POSITIVES, "negatives": ~POSITIVES}
    return float(triplet(label_scores=scores, **masks, margin=margin, hardest=hardest))


def test_the_loss_is_that_of_both_heads(vectors: torch.Tensor, make: Make) -> None:
    system = make(encoder_weight=0.3, initial="random")
    unit = [normalize(half, dim=-1) for half in (vectors[:, :ENCODER], vectors[:, ENCODER:])]
    encoder_loss = triplets(unit[0][:2] @ unit[0][2:].T, margin=0.3, hardest=10)
    classifiers = normalize(system.head.weight.detach(), dim=-1)
    classifier_loss = triplets(unit[1][:2] @ classifiers.T, margin=0.2, hardest=3)

    expected = 0.3 * encoder_loss + 0.7 * classifier_loss
    assert float(system.loss(batch(vectors)).detach()) == pytest.approx(expected)


def test_classifiers_start_as_the_labels_vectors(vectors: torch.Tensor, make: Make) -> None:
    first = normalize(vectors[2:, ENCODER:], dim=-1)
    np.testing.assert_allclose(make().head.weight.detach(), first, rtol=1e-5)


def test_the_second_stage_leaves_the_encoders_half_alone(vectors: torch.Tensor, make: Make) -> None:
    leaf = vectors.clone().requires_grad_()
    system = make(initial="random")
    system.loss(batch(leaf)).backward()

    assert leaf.grad is not None
    assert not leaf.grad[:, :ENCODER].any() and not leaf.grad[2:].any()
    assert leaf.grad[:2, ENCODER:].abs().sum() > 0.01
    assert not system.heads.to_encoder.weight.requires_grad
    assert system.heads.to_classifier.weight.requires_grad
    assert make(encoder_weight=0.5).heads.to_encoder.weight.requires_grad


def test_one_key_has_the_fused_score(vectors: torch.Tensor, make: Make) -> None:
    system, share = make(initial="random"), 0.3
    keys, queries = system.label_keys(vectors[2:].numpy()), vectors[:2].numpy()
    fused = with_share(queries, share, encoder=ENCODER) @ with_share(keys, share, encoder=ENCODER).T

    d, c = (normalize(half, dim=-1) for half in (vectors[:, :ENCODER], vectors[:, ENCODER:]))
    psi = normalize(system.head.weight.detach(), dim=-1).clone()
    psi[3] = c[5]  # no row has this label, so its text replaces its classifier
    expected = share * (d[:2] @ d[2:].T) + (1 - share) * (c[:2] @ psi.T)
    np.testing.assert_allclose(fused, expected, atol=1e-5)


def test_it_needs_heads(vectors: torch.Tensor) -> None:
    with pytest.raises(InvalidConfig, match=r"ngame-classifiers needs the table \[heads\]"):
        build(Settings(), two_headed_task(vectors, heads=False))


def test_over_a_frozen_encoder_the_classifiers_learn_and_d_is_the_first_stages_vector(
    model: Path, tmp_path: Path
) -> None:
    from training.models.torch_encoder import load_encoder

    recipe, run = write_recipe(tmp_path, model=model, system="ngame-classifiers"), tmp_path / "run"
    heads = ("heads.encoder=32", "heads.classifier=32", "heads.activation=none", "heads.dropout=0")
    steps = ("optimizer.steps=40", "validation.every=40", "optimizer.head_learning_rate=0.05")
    frozen = ("encoder.frozen=true", "system.initial=random")
    trainer = open_tiny_run(recipe, run, *frozen, *heads, *steps)

    def hits() -> float:
        """Return the R@10 of the classifiers alone."""
        instances, keys = trainer.model.memory_keys(lambda done, total: None)
        assert trainer.validation is not None
        return trainer.validation.scores(instances[:, 32:], keys[:, 32:])[0.0]["R@10"]

    before = hits()
    trainer.train()

    assert hits() > before
    texts = ["red tent", "lamp"]
    first = load_encoder(str(model)).model.encode(texts, normalize_embeddings=True)
    second = load_encoder(str(run / "best")).model.encode(texts)
    np.testing.assert_allclose(second[:, :32], np.sqrt(0.5) * first, atol=1e-5)
