"""UniDEC and NGAME with classifiers: losses by hand, idle heads, label keys, and whole runs."""

from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file
from torch import Tensor
from torch.nn.functional import normalize

from tests.support.commands import status_of
from tests.support.tiny.training import open_tiny_run, train_tiny, write_recipe
from tests.unit.training.systems.conftest import LABELS_OF, POSITIVES, batch_of
from training.__main__ import app
from training.checkpoints.choices import read_novel
from training.checkpoints.label_keys import read_label_keys
from training.datasets import lf_xmc
from training.loop.finish import SHARES, choose_for_inference
from training.models.encoder_location import find_encoder
from training.models.ngrams import ngrams_of
from training.models.torch_encoder import load_encoder
from training.models.two_heads import TwoHeads, heads_of, with_share
from training.recipes import recipe as recipes
from training.systems import ngame_classifiers, unidec
from training.systems.losses import pick_some_both_ways, triplet
from training.systems.system import EncodedBatch, Task

HEADS = ("heads.encoder=16", "heads.classifier=12")
UNIDEC = ("system.name=unidec", *HEADS, "encoder.frozen=true", "ngrams.learning_rate=0.05")
ENCODER, CLASSIFIER = 3, 2
# Vectors [D; C] of two queries, then of four labels.
VECTORS = torch.randn(6, ENCODER + CLASSIFIER, generator=torch.Generator().manual_seed(2))
QUERIES, TEXTS = VECTORS[:2], VECTORS[2:]
D, C = (normalize(half, dim=-1) for half in VECTORS.split([ENCODER, CLASSIFIER], dim=-1))


def task(**options: str) -> Task:
    return Task(
        labels=len(TEXTS),
        dimension=ENCODER + CLASSIFIER,
        label_vectors=TEXTS.numpy,
        instance_vectors=QUERIES.numpy,
        labels_of=LABELS_OF,
        heads=TwoHeads(inputs=5, encoder=ENCODER, classifier=CLASSIFIER, **options),
    )


def made_unidec(**settings: object) -> unidec.Unidec:
    return unidec.build(unidec.Settings(**settings), task())


def made_ngame(**settings: object) -> ngame_classifiers.NgameClassifiers:
    return ngame_classifiers.build(ngame_classifiers.Settings(**settings), task(activation="none"))


def batch(vectors: Tensor = VECTORS, *, sampled: Tensor = POSITIVES) -> EncodedBatch:
    return batch_of(vectors[:2], vectors[2:], sampled=sampled)


def both_ways(scores: Tensor, tau: float) -> float:
    masks = {"targets": POSITIVES, "candidates": torch.ones_like(POSITIVES)}
    return float(pick_some_both_ways(scores=scores, **masks, tau=tau, queries=0.5))


def triplets(scores: Tensor, *, margin: float, hardest: int) -> float:
    masks = {"sampled": POSITIVES, "negatives": ~POSITIVES}
    return float(triplet(label_scores=scores, **masks, margin=margin, hardest=hardest))


def test_unidecs_loss_is_the_weighted_sum_of_both_heads() -> None:
    made = made_unidec(encoder_weight=0.3, tau=0.5, classifier_tau=0.2, initial="random")
    psi = normalize(made.head.weight.detach(), dim=-1)
    expected = 0.3 * both_ways(D[:2] @ D[2:].T, 0.5) + 0.7 * both_ways(C[:2] @ psi.T, 0.2)
    sampled = POSITIVES.clone()
    sampled[0, 1] = False  # a positive that was not sampled attracts, too
    loss = made.loss(batch(sampled=sampled)).detach()
    assert float(loss) == pytest.approx(expected)


def test_ngames_loss_is_the_weighted_sum_of_both_heads() -> None:
    made = made_ngame(encoder_weight=0.3, initial="random")
    psi = normalize(made.head.weight.detach(), dim=-1)
    encoder_loss = triplets(D[:2] @ D[2:].T, margin=0.3, hardest=10)
    expected = 0.3 * encoder_loss + 0.7 * triplets(C[:2] @ psi.T, margin=0.2, hardest=3)
    assert float(made.loss(batch()).detach()) == pytest.approx(expected)


def test_the_papers_classifiers_have_any_length() -> None:
    """A common factor of both halves, as from the encoder's final normalization, cancels out."""
    made = made_unidec(encoder_weight=0.0, classifier_tau=0.2, normalized=False)
    with torch.no_grad():
        made.head.weight.mul_(3.0)
    lengths = QUERIES[:, :ENCODER].norm(dim=-1, keepdim=True)
    classified = (QUERIES[:, ENCODER:] / lengths) @ made.head.weight.detach().T

    expected = both_ways(classified, 0.2)
    assert float(made.loss(batch()).detach()) == pytest.approx(expected)
    assert float(made.loss(batch(0.1 * VECTORS)).detach()) == pytest.approx(expected, rel=1e-5)


def test_each_weight_trains_its_head_alone() -> None:
    for weight, idle in ((1.0, slice(ENCODER, None)), (0.0, slice(0, ENCODER))):
        leaf = VECTORS.clone().requires_grad_()
        made_unidec(encoder_weight=weight).loss(batch(leaf)).backward()
        assert leaf.grad is not None
        np.testing.assert_allclose(leaf.grad[:, idle], 0.0, atol=1e-7)
        assert leaf.grad.abs().sum() > 0.01


def test_ngames_second_stage_leaves_the_encoders_half_alone() -> None:
    leaf = VECTORS.clone().requires_grad_()
    system = made_ngame(initial="random")
    system.loss(batch(leaf)).backward()

    assert leaf.grad is not None
    assert not leaf.grad[:, :ENCODER].any() and not leaf.grad[2:].any()
    assert leaf.grad[:2, ENCODER:].abs().sum() > 0.01
    assert not system.heads.to_encoder.weight.requires_grad
    assert system.heads.to_classifier.weight.requires_grad
    assert made_ngame(encoder_weight=0.5).heads.to_encoder.weight.requires_grad


def test_a_label_without_rows_keeps_the_classifier_of_its_text() -> None:
    made, texts = made_unidec(initial="random"), TEXTS.numpy()
    keys = made.label_keys(texts)
    np.testing.assert_array_equal(keys[:, :ENCODER], texts[:, :ENCODER])
    np.testing.assert_array_equal(keys[3], texts[3])
    lengths = np.linalg.norm(texts[:3, ENCODER:], axis=1, keepdims=True)
    expected = lengths * normalize(made.head.weight.detach(), dim=-1).numpy()[:3]
    np.testing.assert_allclose(keys[:3, ENCODER:], expected, rtol=1e-5)
    np.testing.assert_allclose(made.neighbour_vectors(texts), D[2:].numpy(), rtol=1e-5)


def test_one_key_has_the_fused_score() -> None:
    system, share = made_ngame(initial="random"), 0.3
    keys, queries = system.label_keys(TEXTS.numpy()), QUERIES.numpy()
    fused = with_share(queries, share, encoder=ENCODER) @ with_share(keys, share, encoder=ENCODER).T

    psi = normalize(system.head.weight.detach(), dim=-1).clone()
    psi[3] = C[5]  # no row has this label, so its text replaces its classifier
    expected = share * (D[:2] @ D[2:].T) + (1 - share) * (C[:2] @ psi.T)
    np.testing.assert_allclose(fused, expected, atol=1e-5)


@pytest.mark.parametrize("initial", ["texts", "queries"])
def test_classifiers_start_from_texts_or_from_clicks_too(initial: str) -> None:
    weight = made_unidec(initial=initial).head.weight.detach()
    texts, queries = TEXTS[:, ENCODER:], QUERIES[:, ENCODER:]
    first = texts[2] + (queries[1] if initial == "queries" else 0)
    np.testing.assert_allclose(weight[2], normalize(first, dim=-1), rtol=1e-5)
    np.testing.assert_allclose(weight[3], C[5], rtol=1e-5)


def test_shares_and_novel_labels_are_chosen_at_the_end(model: Path, tmp_path: Path) -> None:
    recipe, run = write_recipe(tmp_path, model=model, system="unidec"), tmp_path / "run"
    trainer = open_tiny_run(recipe, run, *HEADS, "optimizer.steps=20", "validation.every=20")
    trainer.train()
    choices, finished = choose_for_inference(trainer, console=Console(quiet=True))

    lines = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    shares = {line["share"] for line in lines if line["kind"] == "shared"}
    assert shares == set(SHARES), "each head alone is measured, too"
    module = heads_of(load_encoder(str(run / "best")).model)
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


@pytest.fixture(scope="module")
def trained(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data, a recipe, and the run `first`, whose encoder has n-grams."""
    folder = tmp_path_factory.mktemp("trained")
    write_recipe(folder, model=model)
    lf_xmc.write(lf_xmc.read(data), folder / "data")
    assert train_tiny(folder, "first", "ngrams.buckets=128", recipe="rae") == 0
    return folder


def table(folder: Path) -> np.ndarray:
    ngrams = ngrams_of(load_encoder(str(folder)).model)
    assert ngrams is not None
    weights: np.ndarray = ngrams.table.weight.detach().numpy()
    return weights


@pytest.mark.parametrize("ngrams_frozen", [True, False])
def test_heads_and_classifiers_learn_over_a_run(ngrams_frozen: bool, trained: Path) -> None:
    first, name = trained / "first", f"second-{ngrams_frozen}"
    assert find_encoder(str(first)).name == str(first / "best")
    # The recipe's number of buckets is for an encoder without n-grams.
    ngrams = ("ngrams.buckets=64", f"ngrams.frozen={str(ngrams_frozen).lower()}")
    changes = (*UNIDEC, f"encoder.name={first}", *ngrams)
    assert train_tiny(trained, name, *changes, recipe="rae") == 0

    second = trained / name
    before, after = (load_file(r / "best/model.safetensors") for r in (first, second))
    assert all(np.array_equal(before[key], after[key]) for key in before)
    tables = table(first / "best"), table(second / "best")
    assert len(tables[0]) == len(tables[1]) == 128 and np.array_equal(*tables) is ngrams_frozen
    heads = heads_of(load_encoder(str(second / "best")).model)
    assert heads is not None and (heads.encoder, heads.classifier) == (16, 12)
    keys = read_label_keys(second / "best", labels=16)
    assert keys is None or keys.shape == (16, 28)
    facts = orjson.loads((second / "run.json").read_bytes())
    assert facts["settings"]["encoder"]["name"] == str(first)
    assert status_of(app, "score", "--run", second, "--data", trained / "data") == 0


def test_the_shipped_recipe_leaves_the_encoder_as_it_is(trained: Path, tmp_path: Path) -> None:
    recipe = recipes.load("unidec-heads")
    assert recipe.encoder.frozen and recipe.ngrams.frozen and not recipe.ngrams.buckets

    batch = ("batch.instances=16", "batch.cluster_size=4")
    small = (*batch, "validation.rows=8", "optimizer.epochs=2")
    limits = ("encoder.query_tokens=16", "encoder.label_tokens=16", "system.choose_novel=false")
    # As in the first run, because a process keeps its first run's precision.
    settings = (*small, *limits, *HEADS, "optimizer.precision=fp32")
    places = ("--data", trained / "data", "--out", tmp_path / "run", "--encoder", trained / "first")
    assert status_of(app, "train", "unidec-heads", *places, "--set", *settings) == 0
    assert np.array_equal(table(trained / "first/best"), table(tmp_path / "run/best"))
