"""MOGIC's guidance: its two losses by hand, and the refused combinations."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from service.core.errors import InvalidConfig  # noqa: E402
from training.systems.losses import matching, triplet  # noqa: E402
from training.systems.mogic.guidance import (  # noqa: E402
    Guidance,
    Projection,
    guidance_of,
    projected_on,
)
from training.systems.mogic.settings import GuidanceSettings  # noqa: E402
from training.systems.system import EncodedBatch, EncoderOnly  # noqa: E402


class Silent(EncoderOnly[None]):
    """A system whose own loss is zero."""

    def loss(self, batch: EncodedBatch) -> "torch.Tensor":
        return batch.instances.sum() * 0.0


def unit(*shape: int, seed: int = 0) -> "torch.Tensor":
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def a_batch() -> EncodedBatch:
    """Return a batch of rows 4 and 1 of six, and labels 0, 2 and 3 of five."""
    positives = torch.tensor([[True, False, False], [False, True, False]])
    return EncodedBatch(
        instances=unit(2, 8).requires_grad_(),
        labels=unit(3, 8, seed=1).requires_grad_(),
        rows=torch.tensor([4, 1]),
        pool=torch.tensor([0, 2, 3]),
        sampled=positives,
        positives=positives,
        negatives=~positives,
        instance_negatives=~torch.eye(2, dtype=torch.bool),
    )


def test_alignment_crosses_the_oracle_and_the_disciple() -> None:
    batch, rows, labels = a_batch(), unit(6, 8, seed=2), unit(5, 8, seed=3)
    settings = GuidanceSettings(alpha=0.7, beta=0.0, margin=0.3, hardest=2)
    guidance = Guidance(settings=settings, instances=rows, labels=labels)

    crossed = (
        batch.instances @ labels[[0, 2, 3]].T,  # Triplet(x_D, z_O)
        rows[[4, 1]] @ batch.labels.T,  # Triplet(x_O, z_D)
    )
    masks = {"sampled": batch.sampled, "negatives": batch.negatives}
    expected = sum(triplet(label_scores=s, margin=0.3, hardest=2, **masks) for s in crossed)
    loss = guidance.loss(Silent(None), batch)
    assert loss.item() == pytest.approx(0.7 * expected.item(), rel=1e-6)


def test_matching_is_the_mean_distance_of_both_sides() -> None:
    batch, rows, labels = a_batch(), unit(6, 8, seed=2), unit(5, 8, seed=3)
    settings = GuidanceSettings(alpha=0.0, beta=0.5)
    guidance = Guidance(settings=settings, instances=rows, labels=labels)

    apart = [
        np.linalg.norm(a.detach().numpy() - b.numpy(), axis=1).mean()
        for a, b in ((batch.instances, rows[[4, 1]]), (batch.labels, labels[[0, 2, 3]]))
    ]
    loss = guidance.loss(Silent(None), batch)
    assert loss.item() == pytest.approx(0.5 * sum(apart), rel=1e-6)


def test_the_systems_own_loss_is_weighed_and_can_be_left_out() -> None:
    batch, rows, labels = a_batch(), unit(6, 8, seed=2), unit(5, 8, seed=3)

    class One(EncoderOnly[None]):
        def loss(self, batch: EncodedBatch) -> "torch.Tensor":
            return 0.0 * batch.instances.sum() + 1.0

    def total(system: EncoderOnly[None], weight: float) -> "torch.Tensor":
        settings = GuidanceSettings(oracle="run", own_loss=weight)
        return Guidance(settings=settings, instances=rows, labels=labels).loss(system, batch)

    totals = [total(One(None), weight) for weight in (1.0, 0.5, 0.0)]
    silent = total(Silent(None), 1.0).item()
    assert [one.item() - silent for one in totals] == pytest.approx([1.0, 0.5, 0.0], abs=1e-6)


def test_equal_vectors_have_a_gradient_of_zero() -> None:
    vectors = unit(3, 8).requires_grad_()
    matching(vectors, vectors.detach().clone()).backward()
    assert torch.equal(vectors.grad, torch.zeros(3, 8))


def test_a_larger_oracle_is_projected_on_its_main_directions() -> None:
    flat = np.concatenate([unit(40, 4).numpy(), np.zeros((40, 12), np.float32)], axis=1)
    projected = projected_on(4, flat, source="here")
    assert projected @ projected.T == pytest.approx(flat @ flat.T, abs=1e-5)


def test_a_learned_projection_starts_with_the_main_directions_or_the_identity() -> None:
    larger, same, smaller = unit(40, 16), unit(40, 8), unit(40, 4)
    projected = Projection(8, larger.numpy())(larger).detach().numpy()
    assert projected == pytest.approx(projected_on(8, larger.numpy(), source="here"), abs=1e-5)
    assert torch.allclose(Projection(8, same.numpy())(same), same)
    assert torch.allclose(Projection(8, smaller.numpy())(smaller)[:, :4], smaller)


def guided_by(
    rows: np.ndarray,
    labels: np.ndarray,
    *,
    projection: str = "pca",
    system: EncoderOnly[None] | None = None,
) -> Guidance:
    settings = GuidanceSettings(oracle="run", alpha=0.7, beta=0.5, hardest=2, projection=projection)
    vectors = {"instances": rows, "labels": labels}
    return guidance_of(settings, system or Silent(None), **vectors, dimension=8, source="here")


def test_a_learned_projection_learns_by_the_two_losses() -> None:
    batch, rows, labels = a_batch(), unit(6, 12, seed=2).numpy(), unit(5, 12, seed=3).numpy()
    learned, pca = guided_by(rows, labels, projection="learned"), guided_by(rows, labels)
    loss = learned.loss(Silent(None), batch)
    assert loss.item() == pytest.approx(pca.loss(Silent(None), batch).item(), rel=1e-4)
    loss.backward()
    assert pca.projection is None and learned.projection is not None
    assert learned.projection.weight.grad.abs().max() > 0


def test_a_smaller_oracle_and_labels_without_texts_are_refused() -> None:
    smaller, same = unit(6, 4).numpy(), unit(6, 8).numpy()
    with pytest.raises(InvalidConfig, match="4 dimensions, fewer than the 8"):
        guided_by(smaller, smaller)
    assert guided_by(smaller, smaller, projection="learned").projection
    without = Silent(None)
    without.encodes_labels = False
    with pytest.raises(InvalidConfig, match="encodes the labels' texts"):
        guided_by(same, same, system=without)
