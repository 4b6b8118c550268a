"""A system with soft labels: its loss by hand, and runs of every system that may have them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from service.command_line import run
from service.core.errors import InvalidConfig, InvalidInput
from tests.support.tiny.training import losses, open_tiny_run, train_tiny, write_recipe
from training.__main__ import app
from training.datasets import lf_xmc
from training.systems.dual_encoder import DualEncoder
from training.systems.dual_encoder import Settings as DualSettings
from training.systems.losses import against_negatives, soft_cross_entropy
from training.systems.soft_labels.settings import SoftLabelSettings
from training.systems.soft_labels.system import SoftLabelled
from training.systems.soft_labels.teacher import SoftLabels
from training.systems.system import EncodedBatch

POSITIVES = torch.tensor([[True, False, False], [False, True, False]])
HEADS = ("heads.encoder=16", "heads.classifier=12")


def a_batch() -> EncodedBatch:
    """Rows 4 and 1 of six, labels 0, 2 and 3 of five."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(5, 8, generator=generator), dim=-1)
    return EncodedBatch(
        instances=vectors[:2],
        labels=vectors[2:],
        rows=torch.tensor([4, 1]),
        pool=torch.tensor([0, 2, 3]),
        sampled=POSITIVES,
        positives=POSITIVES,
        negatives=~POSITIVES,
        instance_negatives=~torch.eye(2, dtype=torch.bool),
    )


def soft() -> SoftLabels:
    """Row 4 has the soft labels 3 and 1, of which the pool holds 3."""
    labels, probabilities = np.full((6, 2), -1, np.int64), np.zeros((6, 2), np.float32)
    labels[4], probabilities[4] = [3, 1], [0.25, 0.9]
    return SoftLabels(labels=labels, probabilities=probabilities)


def test_logits_are_against_the_negatives_alone() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    negatives = torch.tensor([[False, True, True]])
    expected = 1.0 / 0.5 - np.log(np.exp(4.0) + np.exp(6.0))
    found = against_negatives(scores=scores, negatives=negatives, tau=0.5)
    assert found[0, 0].item() == pytest.approx(expected, rel=1e-6)


def test_soft_cross_entropy_by_hand() -> None:
    logits, targets = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.25, 0.5]])
    both = torch.tensor([[True, True]])
    losses_of = [np.log(2.0), 0.5 * np.log1p(np.exp(-2.0)) + 0.5 * np.log1p(np.exp(2.0))]
    found = soft_cross_entropy(logits=logits, targets=targets, counted=both)
    assert found.item() == pytest.approx(np.mean(losses_of), rel=1e-6)
    none = soft_cross_entropy(logits=logits, targets=targets, counted=~both)
    assert none.item() == 0.0


def test_a_soft_label_is_no_negative_and_adds_its_loss() -> None:
    batch, plain = a_batch(), DualEncoder(DualSettings(tau=0.1))
    system = SoftLabelled(plain, SoftLabelSettings(weight=0.5), soft())
    targets, is_soft = system.targets(batch)
    assert targets.tolist() == [[0.0, 0.0, 0.25], [0.0, 0.0, 0.0]]
    assert is_soft.tolist() == [[False, False, True], [False, False, False]]

    scores = (batch.instances @ batch.labels.T / 0.1).numpy().astype(np.float64)
    row = np.log1p(np.exp(scores[0, 1] - scores[0, 0]))  # label 3 is no negative of row 4
    other = np.log1p((np.exp(scores[1, 0]) + np.exp(scores[1, 2])) / np.exp(scores[1, 1]))
    logit = scores[0, 2] - scores[0, 1]
    entropy = 0.25 * np.log1p(np.exp(-logit)) + 0.75 * np.log1p(np.exp(logit))
    expected = (row + other) / 2 + 0.5 * entropy
    assert system.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_without_soft_labels_in_the_pool_the_loss_is_the_systems() -> None:
    batch, plain = a_batch(), DualEncoder(DualSettings(tau=0.1))
    nothing = SoftLabels(
        labels=np.full((6, 1), -1, np.int64), probabilities=np.zeros((6, 1), np.float32)
    )
    system = SoftLabelled(plain, SoftLabelSettings(), nothing)
    assert system.loss(batch).item() == pytest.approx(plain.loss(batch).item())


@pytest.fixture(scope="module")
def taught(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data, a recipe, and the finished run `teacher`."""
    folder = tmp_path_factory.mktemp("taught")
    write_recipe(folder, model=model)
    lf_xmc.write(lf_xmc.read(data), folder / "data")
    assert train_tiny(folder, "teacher", "ngrams.buckets=128", recipe="rae") == 0
    return folder


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("rae", ()),
        ("dual-encoder", ("soft_labels.source=labels", "optimizer.gradient_cache=true")),
        ("supcon-de", ()),
        ("unidec", HEADS),
        ("unidec", (*HEADS, "system.encoder_weight=1", "system.normalized=false")),
        ("one-versus-all", ("batch.pool=all",)),
    ],
)
def test_systems_learn_with_soft_labels(
    system: str, changes: tuple[str, ...], taught: Path, model: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, model=model, system=system)
    teacher = (f"soft_labels.teacher={taught / 'teacher'}", "soft_labels.most_rows=6")
    steps = ("optimizer.steps=40", "validation.every=40", "encoder.frozen=true")
    learns = ("ngrams.buckets=256",)
    trainer = open_tiny_run(recipe, tmp_path / "run", *teacher, *steps, *learns, *changes)
    assert trainer.batches.batch(0).pool.size > 0
    trainer.train()

    course = losses(tmp_path / "run")
    assert np.mean(course[-5:]) < np.mean(course[:5])
    weightless = open_tiny_run(
        recipe, tmp_path / "other", *teacher, *steps, *learns, *changes, "soft_labels.weight=0"
    )
    weightless.train()
    assert losses(tmp_path / "other") != course


def test_the_command_line_takes_a_teacher(taught: Path) -> None:
    settings = (f"soft_labels.teacher={taught / 'teacher'}", "soft_labels.most_rows=6")
    assert train_tiny(taught, "student", *settings, recipe="rae") == 0
    places = ["--run", str(taught / "student"), "--data", str(taught / "data")]
    assert run(app, ["score", *places]) == 0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (("seed=1",), InvalidConfig, "held out other rows"),
        (("validation.rows=4",), InvalidConfig, "held out other rows"),
        (("system.name=ngame",), InvalidConfig, "whose loss is a softmax or a sigmoid"),
        (("soft_labels.weight=-1",), InvalidConfig, "soft_labels.weight"),
        (("soft_labels.depth=1",), InvalidConfig, "depth is unknown"),
    ],
)
def test_what_does_not_fit_is_named(
    changes: tuple[str, ...],
    error: type[InvalidInput],
    message: str,
    taught: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    recipe = write_recipe(tmp_path, model=model)
    teacher = (f"soft_labels.teacher={taught / 'teacher'}", "soft_labels.most_rows=6")
    with pytest.raises(error, match=message):
        open_tiny_run(recipe, tmp_path / "run", *teacher, *changes)
