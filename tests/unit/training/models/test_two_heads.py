"""UniDEC's two heads make one unit vector of two halves; its classifiers start as class means."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from scipy.sparse import csr_matrix

from export.encoder.onnx import trace
from service.core.types import Role
from training.models.class_means import class_means
from training.models.settings import HeadSettings
from training.models.torch_encoder import load_encoder
from training.models.two_heads import TwoHeads, heads_of, untrained_heads, with_share

TEXTS = ["red tent", "small boots", "lamp", "a cheap blue jacket"]


def vectors_of(module: TwoHeads, inputs: torch.Tensor) -> torch.Tensor:
    return module({"sentence_embedding": inputs})["sentence_embedding"]


@pytest.fixture
def inputs() -> torch.Tensor:
    drawn = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.normalize(drawn, dim=-1)


def heads(**changes: int | float | bool | str) -> TwoHeads:
    torch.manual_seed(1)
    return TwoHeads(inputs=8, encoder=5, classifier=3, **changes)


def test_a_vector_is_computed_by_hand() -> None:
    module = TwoHeads(inputs=2, encoder=2, classifier=2).eval()
    with torch.no_grad():
        module.to_encoder.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        module.to_encoder.bias.zero_()
        module.to_classifier.weight.copy_(torch.tensor([[0.0, 1.0], [3.0, 0.0]]))
        module.to_classifier.bias.zero_()
        module.share.fill_(0.36)
    text = torch.tensor([[0.6, 0.8]])
    encoded = np.tanh([0.6, 1.6]) / np.linalg.norm(np.tanh([0.6, 1.6]))
    classified = np.array([0.8, 1.8]) / np.linalg.norm([0.8, 1.8])
    expected = np.concatenate([0.6 * encoded, 0.8 * classified])
    np.testing.assert_allclose(vectors_of(module, text)[0].detach(), expected, atol=1e-6)


@pytest.mark.parametrize("activation", ["tanh", "none"])
def test_similarities_are_the_shares_of_both_heads(activation: str, inputs: torch.Tensor) -> None:
    module = heads(activation=activation).eval()
    with torch.no_grad():
        at_half = vectors_of(module, inputs).numpy()
        module.share.fill_(0.8)
        at_most = vectors_of(module, inputs).numpy()
    np.testing.assert_allclose(np.linalg.norm(at_half, axis=1), 1.0, atol=1e-6)
    encoded, classified = at_half[:, :5], at_half[:, 5:]
    expected = 2 * (0.8 * encoded @ encoded.T + 0.2 * classified @ classified.T)
    np.testing.assert_allclose(at_most @ at_most.T, expected, atol=1e-5)
    np.testing.assert_allclose(with_share(at_half, 0.8, encoder=5), at_most, atol=1e-6)
    alone = with_share(at_half, 1.0, encoder=5)  # a share of 1 leaves only the encoder head
    assert not alone[:, 5:].any()
    np.testing.assert_allclose(np.linalg.norm(alone[:, :5], axis=1), 1.0, atol=1e-6)


def test_for_unidecs_loss_the_classifiers_half_keeps_its_length(inputs: torch.Tensor) -> None:
    module = heads().train()
    whole = vectors_of(module, inputs)
    np.testing.assert_allclose(whole.norm(dim=-1).detach(), 1.0, atol=1e-6)
    module.apart = True
    vectors = vectors_of(module, inputs)
    np.testing.assert_allclose(vectors[:, :5].norm(dim=-1).detach(), 1.0, atol=1e-6)
    expected = module.to_classifier(inputs)
    np.testing.assert_allclose(vectors[:, 5:].detach(), expected.detach(), atol=1e-6)


def test_shared_heads_have_one_projection(inputs: torch.Tensor) -> None:
    module = TwoHeads(inputs=8, encoder=4, classifier=4, activation="none", shared=True).eval()
    vectors = vectors_of(module, inputs).detach()
    np.testing.assert_allclose(vectors[:, :4], vectors[:, 4:], atol=1e-6)
    with pytest.raises(ValueError, match="same number of dimensions"):
        HeadSettings(encoder=4, classifier=3, shared=True)
    with pytest.raises(ValueError, match="or neither"):
        HeadSettings(encoder=4)


def test_training_starts_from_what_the_encoder_knows() -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(200, 3)).astype(np.float32) @ rng.normal(size=(3, 8)).astype(np.float32)
    vectors = (flat / np.linalg.norm(flat, axis=1, keepdims=True)).astype(np.float32)
    settings = HeadSettings(encoder=3, classifier=8, activation="none")
    started = vectors_of(untrained_heads(vectors, settings).eval(), torch.from_numpy(vectors))
    similarities = (started @ started.T).detach().numpy()
    np.testing.assert_allclose(similarities, vectors @ vectors.T, atol=1e-4)


def test_a_checkpoint_and_an_exported_graph_keep_the_heads_and_their_share(
    model: Path, tmp_path: Path
) -> None:
    with_heads = load_encoder(str(model))
    vectors = with_heads.encode(TEXTS, role=Role.QUERY)
    module = untrained_heads(vectors, HeadSettings(encoder=20, classifier=12))
    with torch.no_grad():
        module.share.fill_(0.7)
    with_heads.model.append(module)
    with_heads.model.save(str(tmp_path / "saved"), create_model_card=False)

    expected = with_heads.encode(TEXTS, role=Role.QUERY)
    loaded = load_encoder(str(tmp_path / "saved"))
    assert loaded.dimension == 32
    module = heads_of(loaded.model)
    assert module is not None and float(module.share) == pytest.approx(0.7)
    np.testing.assert_allclose(loaded.encode(TEXTS, role=Role.QUERY), expected, atol=1e-6)

    trace(with_heads, tmp_path / "encoder.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "encoder.onnx")
    tokens = with_heads.tokenizer(TEXTS, padding=True, return_tensors="np")
    feed = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    np.testing.assert_allclose(session.run(None, feed)[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("text_weight", "expected"),
    [
        (0.0, [[0.5**0.5, 0.5**0.5], [0, 1], [0.6, 0.8]]),
        (1.0, [[1, 0], [0.5**0.5, 0.5**0.5], [0.6, 0.8]]),
    ],
)
def test_in_class_means_a_text_counts_as_queries_do(
    text_weight: float, expected: list[list[float]]
) -> None:
    labels_of = csr_matrix(np.array([[2.0, 0, 0], [1, 1, 0]], np.float32))
    instances = np.array([[1, 0], [0, 1]], np.float32)
    texts = np.array([[0, -1], [1, 0], [0.6, 0.8]], np.float32)
    means = class_means(labels_of, instances, texts, text_weight=text_weight)
    assert means == pytest.approx(np.array(expected))
