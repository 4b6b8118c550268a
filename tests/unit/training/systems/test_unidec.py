"""UniDEC: both losses by hand, keys of known and unknown labels, and a run with its bundle."""

from pathlib import Path

import numpy as np
import orjson
import pytest
import torch

from tests.support.tiny.training import open_tiny_run, write_recipe
from tests.unit.training.systems.conftest import (
    ENCODER,
    POSITIVES,
    batch_of,
    two_headed_task,
)
from training.checkpoints.choices import read_novel
from training.checkpoints.label_keys import read_label_keys
from training.loop.finish import SHARES, choose_for_inference
from training.models.torch_encoder import load_encoder
from training.models.two_heads import heads_of
from training.systems.losses import pick_some_both_ways
from training.systems.system import EncodedBatch
from training.systems.unidec import Settings, Unidec, build


def system(vectors: torch.Tensor, **settings: object) -> Unidec:
    return build(Settings(**settings), two_headed_task(vectors))


def batch(vectors: torch.Tensor) -> EncodedBatch:
    sampled = POSITIVES.clone()
    sampled[0, 1] = False
    return batch_of(vectors[:2], vectors[2:], sampled=sampled)


def both_ways(scores: torch.Tensor, tau: float) -> torch.Tensor:
    everything = torch.ones_like(POSITIVES)
    return pick_some_both_ways(
        scores=scores, targets=POSITIVES, candidates=everything, tau=tau, queries=0.5
    )


def unit(vectors: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def test_the_loss_is_the_weighted_sum_of_both_heads(vectors: torch.Tensor) -> None:
    made = system(vectors, encoder_weight=0.3, tau=0.5, classifier_tau=0.2, initial="random")
    encoded = unit(vectors[:2, :ENCODER]) @ unit(vectors[2:, :ENCODER]).T
    classified = unit(vectors[:2, ENCODER:]) @ unit(made.head.weight.detach()).T

    expected = 0.3 * both_ways(encoded, 0.5) + 0.7 * both_ways(classified, 0.2)
    assert float(made.loss(batch(vectors)).detach()) == pytest.approx(float(expected))


def test_the_papers_classifiers_have_any_length(vectors: torch.Tensor) -> None:
    """A common factor of both halves, as from the encoder's final normalization, cancels out."""
    made = system(vectors, encoder_weight=0.0, classifier_tau=0.2, normalized=False)
    with torch.no_grad():
        made.head.weight.mul_(3.0)
    lengths = vectors[:2, :ENCODER].norm(dim=-1, keepdim=True)
    classified = (vectors[:2, ENCODER:] / lengths) @ made.head.weight.detach().T

    expected = float(both_ways(classified, 0.2))
    assert float(made.loss(batch(vectors)).detach()) == pytest.approx(expected)
    assert float(made.loss(batch(0.1 * vectors)).detach()) == pytest.approx(expected, rel=1e-5)


def test_each_weight_trains_its_head_alone(vectors: torch.Tensor) -> None:
    for weight, idle in ((1.0, slice(ENCODER, None)), (0.0, slice(0, ENCODER))):
        leaf = vectors.clone().requires_grad_()
        made = system(vectors, encoder_weight=weight)
        made.loss(batch(leaf)).backward()
        assert leaf.grad is not None
        np.testing.assert_allclose(leaf.grad[:, idle], 0.0, atol=1e-7)
        assert leaf.grad.abs().sum() > 0.01


def test_a_label_without_rows_keeps_the_classifier_of_its_text(vectors: torch.Tensor) -> None:
    made = system(vectors, initial="random")
    texts = vectors[2:].numpy()
    keys = made.label_keys(texts)
    np.testing.assert_array_equal(keys[:, :ENCODER], texts[:, :ENCODER])
    np.testing.assert_array_equal(keys[3], texts[3])
    lengths = np.linalg.norm(texts[:3, ENCODER:], axis=1, keepdims=True)
    expected = lengths * unit(made.head.weight.detach()).numpy()[:3]
    np.testing.assert_allclose(keys[:3, ENCODER:], expected, rtol=1e-5)
    mined = made.neighbour_vectors(texts)
    np.testing.assert_allclose(mined, unit(vectors[2:, :ENCODER]).numpy(), rtol=1e-5)


@pytest.mark.parametrize("initial", ["texts", "queries"])
def test_classifiers_start_from_texts_or_from_clicks_too(
    initial: str, vectors: torch.Tensor
) -> None:
    weight = system(vectors, initial=initial).head.weight.detach()
    texts, queries = vectors[2:, ENCODER:], vectors[:2, ENCODER:]
    first = texts[2] + (queries[1] if initial == "queries" else 0)
    np.testing.assert_allclose(weight[2], unit(first), rtol=1e-5)
    np.testing.assert_allclose(weight[3], unit(texts[3]), rtol=1e-5)


def test_shares_and_novel_labels_are_chosen_at_the_end(model: Path, tmp_path: Path) -> None:
    from rich.console import Console

    run = tmp_path / "run"
    trainer = open_tiny_run(
        write_recipe(tmp_path, model=model, system="unidec"),
        run,
        "heads.encoder=16",
        "heads.classifier=16",
        "optimizer.steps=20",
        "validation.every=20",
    )
    trainer.train()
    choices, finished = choose_for_inference(trainer, console=Console(quiet=True))

    lines = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    shares = {line["share"] for line in lines if line["kind"] == "shared"}
    assert shares == set(SHARES), "each head alone is measured, too"
    saved = load_encoder(str(run / "best"))
    module = heads_of(saved.model)
    assert module is not None and 0.0 < float(module.share) < 1.0
    assert choices.system == "unidec" and finished is not None
    keys = read_label_keys(run / "best", labels=16)
    if finished.keys is finished.labels:
        assert keys is None and read_novel(run / "best") is None
        return
    assert keys is not None
    np.testing.assert_allclose(keys, finished.keys, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1.0, atol=1e-2)
    novel = read_novel(run / "best")
    assert novel is not None and novel.classifiers == "keys"
