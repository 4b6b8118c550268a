"""DEXA, SiameseXML and one-versus-all: augmented labels by hand, label keys, half precision."""

import numpy as np
import pytest
import torch

from tests.unit.training.systems.conftest import LABELS_OF, POSITIVES, batch_of, unit
from training.systems import one_versus_all, siamese_xml
from training.systems.dexa import Dexa, Settings, augmented, build, clusters_of
from training.systems.losses import triplet
from training.systems.system import EncodedBatch, Task

# Labels 0 and 1 are close, and so are 2 and 3; no query has label 3.
TEXTS = np.array([[1.0, 0.0], [0.98, 0.199], [0.0, 1.0], [0.199, 0.98]], np.float32)
QUERIES = torch.tensor([[0.6, 0.8], [0.8, 0.6]])
TASK = Task(
    labels=4,
    dimension=2,
    label_vectors=lambda: TEXTS,
    instance_vectors=QUERIES.numpy,
    labels_of=LABELS_OF,
)


def make(**settings: object) -> Dexa:
    return build(Settings(**settings), TASK)


def batch(texts: torch.Tensor) -> EncodedBatch:
    """Return a batch of the two queries, with the labels 0, 1 and 2 as pool."""
    return batch_of(QUERIES, texts[:3], positives=POSITIVES[:, :3])


def test_an_auxiliary_vector_is_added_to_the_text_by_gamma() -> None:
    label = augmented(
        texts=torch.tensor([[1.0, 0.0]]), auxiliary=torch.tensor([[1.0, 4.0]]), gamma=0.5
    )
    # (1, 0) + (0.5, 2) = (1.5, 2), of length 2.5
    assert label.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]


def test_close_labels_share_a_cluster() -> None:
    clusters = clusters_of(TEXTS, size=2)
    assert clusters[0] == clusters[1] and clusters[2] == clusters[3]
    assert set(clusters.tolist()) == {0, 1}
    assert clusters_of(TEXTS, size=1).tolist() == [0, 1, 2, 3]


def test_before_training_the_loss_is_ngames() -> None:
    texts = torch.from_numpy(TEXTS)
    ours = batch(texts)
    expected = triplet(
        label_scores=ours.label_scores,
        sampled=ours.sampled,
        negatives=ours.negatives,
        margin=0.3,
        hardest=10,
    )
    assert float(make().loss(ours).detach()) == pytest.approx(float(expected), rel=1e-5)


def test_the_labels_of_a_cluster_move_their_vector_together() -> None:
    system, texts = make(), torch.from_numpy(TEXTS).requires_grad_()
    system.loss(batch(texts)).backward()

    gradient = system.head.weight.grad.to_dense()  # [K, d]
    clusters = system.head.clusters
    assert texts.grad is not None and texts.grad[:3].abs().sum() > 0.01, "the encoder learns, too"
    # If e = 0, a text and the vector added to it have the same gradient.
    np.testing.assert_allclose(gradient[clusters[0]], texts.grad[:2].sum(0), rtol=1e-4)


def test_a_label_without_clicks_takes_the_vector_of_its_cluster() -> None:
    system = make(gamma=2.0)
    np.testing.assert_allclose(system.label_keys(TEXTS), TEXTS, atol=1e-3)
    moved = int(system.head.clusters[2])
    with torch.no_grad():
        system.head.weight[moved] = torch.tensor([0.5, -0.5])

    keys = system.label_keys(TEXTS)

    np.testing.assert_allclose(keys[:2], TEXTS[:2], atol=1e-3)
    np.testing.assert_allclose(keys[2], [1.0, 0.0], atol=1e-6)  # (0, 1) + 2 (0.5, -0.5)
    np.testing.assert_allclose(keys[3], np.array([1.199, -0.02]) / 1.1992, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1.0, atol=1e-5)


def test_in_siamesexml_each_label_has_a_residual_of_its_own() -> None:
    system = siamese_xml.build(siamese_xml.Settings(), TASK)
    np.testing.assert_allclose(system.label_keys(TEXTS), TEXTS, atol=1e-3)
    with torch.no_grad():
        system.head.weight.copy_(torch.eye(4, 2))

    moved = TEXTS + np.eye(4, 2)
    expected = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(system.label_keys(TEXTS), expected, atol=1e-6)


def test_products_in_half_precision_have_the_gradients_of_full_precision() -> None:
    vectors, products, gradients = unit(7, 64, seed=3), [], []
    for precision in (torch.float32, torch.bfloat16):
        leaf = vectors.clone().requires_grad_()
        parts = {"instances": leaf[:3], "classifiers": leaf[3:]}
        made = one_versus_all.similarities(**parts, precision=precision)
        (made * torch.arange(12.0).reshape(3, 4)).sum().backward()
        assert made.dtype == torch.float32 and leaf.grad is not None
        products.append(made.detach())
        gradients.append(leaf.grad)

    np.testing.assert_allclose(products[0], vectors[:3] @ vectors[3:].T, atol=1e-6)
    np.testing.assert_allclose(products[1], products[0], atol=0.01)
    np.testing.assert_allclose(gradients[1], gradients[0], atol=0.2)
    assert not torch.equal(products[0], products[1])


@pytest.mark.parametrize("hardware", ["bf16", "fp16", "fp32"])
def test_renee_multiplies_in_half_precision_only_where_the_hardware_has_bf16(
    hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_versus_all, "supported_precision", lambda precision: hardware)
    losses = []
    for hybrid in (False, True):
        settings = one_versus_all.Settings(initial="labels", hybrid_precision=hybrid)
        system = one_versus_all.build(settings, TASK)
        loss = system.loss(batch_of(QUERIES, torch.from_numpy(TEXTS)))
        loss.backward()
        assert system.head.weight.dtype == system.head.weight.grad.dtype == torch.float32
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert (losses[0] == losses[1]) is (hardware != "bf16")
