"""MOGIC's guidance: its two losses by hand, and the refused combinations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from service.core.errors import InvalidConfig
from tests.unit.training.systems.conftest import batch_of, unit
from training.models.settings import GuidanceSettings
from training.systems.guidance import Guidance, Projection, guidance_of, projected_on
from training.systems.losses import matching, triplet
from training.systems.system import EncodedBatch, EncoderOnly

ROWS, LABELS = unit(6, 8, seed=2), unit(5, 8, seed=3)  # the oracle's vectors
FIRST, POOL = [4, 1], [0, 2, 3]  # the batch's rows and labels


class Constant(EncoderOnly[float]):
    """A system whose own loss is its setting."""

    def loss(self, batch: EncodedBatch) -> torch.Tensor:
        return 0.0 * batch.instances.sum() + self._settings


def a_batch() -> EncodedBatch:
    positives = torch.tensor([[True, False, False], [False, True, False]])
    vectors = (unit(2, 8).requires_grad_(), unit(3, 8, seed=1).requires_grad_())
    batch = batch_of(*vectors, positives=positives)
    return replace(batch, rows=torch.tensor(FIRST), pool=torch.tensor(POOL))


def guided_loss(*, own: float = 0.0, **settings: float) -> float:
    given = GuidanceSettings(oracle="run", **settings)
    guidance = Guidance(settings=given, instances=ROWS, labels=LABELS)
    return guidance.loss(Constant(own, None), a_batch()).item()


def guided_by(
    rows: np.ndarray, labels: np.ndarray, *, projection: str = "pca", encodes_labels: bool = True
) -> Guidance:
    settings = GuidanceSettings(oracle="run", alpha=0.7, beta=0.5, hardest=2, projection=projection)
    system = Constant(0.0, None)
    system.encodes_labels = encodes_labels
    vectors = {"instances": rows, "labels": labels}
    return guidance_of(settings, system, **vectors, dimension=8, source="here")


def test_alignment_crosses_the_oracle_and_the_disciple() -> None:
    batch = a_batch()
    crossed = (
        batch.instances @ LABELS[POOL].T,  # Triplet(x_D, z_O)
        ROWS[FIRST] @ batch.labels.T,  # Triplet(x_O, z_D)
    )
    masks = {"sampled": batch.sampled, "negatives": batch.negatives}
    expected = sum(triplet(label_scores=s, margin=0.3, hardest=2, **masks) for s in crossed)
    loss = guided_loss(alpha=0.7, beta=0.0, margin=0.3, hardest=2)
    assert loss == pytest.approx(0.7 * expected.item(), rel=1e-6)


def test_matching_is_the_mean_distance_of_both_sides() -> None:
    batch = a_batch()
    apart = [
        np.linalg.norm(a.detach().numpy() - b.numpy(), axis=1).mean()
        for a, b in ((batch.instances, ROWS[FIRST]), (batch.labels, LABELS[POOL]))
    ]
    assert guided_loss(alpha=0.0, beta=0.5) == pytest.approx(0.5 * sum(apart), rel=1e-6)


def test_the_systems_own_loss_is_weighed_and_can_be_left_out() -> None:
    totals = [guided_loss(own=1.0, own_loss=weight) - guided_loss() for weight in (1.0, 0.5, 0.0)]
    assert totals == pytest.approx([1.0, 0.5, 0.0], abs=1e-6)


def test_equal_vectors_have_a_gradient_of_zero() -> None:
    vectors = unit(3, 8).requires_grad_()
    matching(vectors, vectors.detach().clone()).backward()
    assert torch.equal(vectors.grad, torch.zeros(3, 8))


def test_a_projection_has_the_main_directions_and_a_learned_one_starts_with_them() -> None:
    flat = np.concatenate([unit(40, 4).numpy(), np.zeros((40, 12), np.float32)], axis=1)
    main = projected_on(4, flat, source="here")
    assert main @ main.T == pytest.approx(flat @ flat.T, abs=1e-5)
    larger, same, smaller = unit(40, 16), unit(40, 8), unit(40, 4)
    projected = Projection(8, larger.numpy())(larger).detach().numpy()
    assert projected == pytest.approx(projected_on(8, larger.numpy(), source="here"), abs=1e-5)
    assert torch.allclose(Projection(8, same.numpy())(same), same)
    assert torch.allclose(Projection(8, smaller.numpy())(smaller)[:, :4], smaller)


def test_a_learned_projection_learns_by_the_two_losses() -> None:
    rows, labels = unit(6, 12, seed=2).numpy(), unit(5, 12, seed=3).numpy()
    learned, pca = guided_by(rows, labels, projection="learned"), guided_by(rows, labels)
    system, batch = Constant(0.0, None), a_batch()
    loss = learned.loss(system, batch)
    assert loss.item() == pytest.approx(pca.loss(system, batch).item(), rel=1e-4)
    loss.backward()
    assert pca.projection is None and learned.projection is not None
    assert learned.projection.weight.grad.abs().max() > 0


def test_a_smaller_oracle_and_labels_without_texts_are_refused() -> None:
    smaller, same = unit(6, 4).numpy(), unit(6, 8).numpy()
    with pytest.raises(InvalidConfig, match="4 dimensions, fewer than the 8"):
        guided_by(smaller, smaller)
    assert guided_by(smaller, smaller, projection="learned").projection
    with pytest.raises(InvalidConfig, match="encodes the labels' texts"):
        guided_by(same, same, encodes_labels=False)
