"""Distillations of a tiny teacher: the loss falls, runs repeat, resume, and never see test rows."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from service.core.errors import InvalidData
from service.core.types import Role
from tests.support.tiny.training import last_weights, losses, tiny_dataset
from tests.unit.training.distillation.conftest import Distill
from training.checkpoints.choices import read_choices
from training.distillation import manifest
from training.distillation.batches import text_batches
from training.distillation.settings import DistillationSettings
from training.distillation.student import make_student
from training.distillation.teacher import VECTORS
from training.distillation.unlabelled import read_texts, without
from training.evaluation.encode_texts import encode_texts
from training.models.torch_encoder import load_encoder

LONG = {"steps": 60, "every": 60, "learning_rate": 5e-3}


def test_the_student_approaches_the_teacher(
    distill: Distill, teacher_folder: Path, tmp_path: Path
) -> None:
    made = distill(tmp_path / "run", **LONG)

    course = losses(tmp_path / "run")
    assert np.mean(course[-5:]) < 0.5 * np.mean(course[:5])
    teacher, texts = load_encoder(str(teacher_folder)), tiny_dataset().test.instances.texts
    target = encode_texts(teacher, texts, role=Role.QUERY)
    untrained = encode_texts(make_student(teacher, layers=2), texts, role=Role.QUERY)
    student = load_encoder(str(tmp_path / "run" / "best"))
    trained = encode_texts(student, texts, role=Role.QUERY)
    assert (trained * target).sum(axis=1).mean() > (untrained * target).sum(axis=1).mean()
    assert made.agreement is not None and made.agreement > 0.9


def test_the_manifest_says_how_the_student_was_made(distill: Distill, tmp_path: Path) -> None:
    made = distill(tmp_path / "run")

    best = tmp_path / "run" / "best"
    assert manifest.read(best) == made
    assert (made.layers, made.teacher_layers) == (2, 4)
    assert made.settings["steps"] == 8
    assert set(made.held_out) == set(made.teacher_held_out) >= {"P@1", "PSP@5"}
    assert read_choices(best) is not None


def test_a_copy_of_all_layers_ranks_as_the_teacher(distill: Distill, tmp_path: Path) -> None:
    made = distill(tmp_path / "run", layers=4, steps=1, learning_rate=1e-9)
    assert made.agreement == pytest.approx(1.0, abs=1e-5)
    assert made.held_out == made.teacher_held_out


def test_the_same_seed_gives_the_same_student(distill: Distill, tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        distill(tmp_path / name, seed=seed, similarity=0.5, keys=8)
    first, again, other = (last_weights(tmp_path / name) for name in ("first", "again", "other"))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)


def test_a_resumed_run_ends_as_an_unbroken_one(
    distill: Distill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.loop.trainer import Trainer

    distill(tmp_path / "unbroken")
    take_step = Trainer.take_step

    def interrupted(self: Trainer, number: int) -> None:
        if number == 6:  # two steps after a state was saved
            raise KeyboardInterrupt
        take_step(self, number)

    monkeypatch.setattr(Trainer, "take_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        distill(tmp_path / "broken")
    monkeypatch.undo()
    with pytest.raises(InvalidData, match="already holds a run"):
        distill(tmp_path / "broken")
    distill(tmp_path / "broken", resume=True)

    unbroken, broken = last_weights(tmp_path / "unbroken"), last_weights(tmp_path / "broken")
    assert all(np.array_equal(unbroken[name], broken[name]) for name in unbroken)


def test_a_second_stage_starts_from_the_first(distill: Distill, tmp_path: Path) -> None:
    distill(tmp_path / "first", **LONG)
    start = str(tmp_path / "first" / "best")
    distill(tmp_path / "second", start=start, steps=1, learning_rate=1e-9)
    weights = (
        load_file(tmp_path / run / "best" / "model.safetensors") for run in ("first", "second")
    )
    first, second = weights
    assert all(np.allclose(first[name], second[name], rtol=0, atol=1e-6) for name in first)


def test_without_held_out_rows_the_last_student_is_kept(distill: Distill, tmp_path: Path) -> None:
    made = distill(tmp_path / "run", held_out=0)
    assert (made.step, made.agreement, made.held_out) == (8, None, {})


def test_held_out_texts_train_in_no_role() -> None:
    """A label with the text of a held-out row is left out, too, whatever its case."""
    dataset = tiny_dataset()
    text = dataset.train.instances.texts[3]
    labels = dataset.labels
    same = (*labels.texts[:-1], text.upper())
    object.__setattr__(labels, "texts", same)
    settings = DistillationSettings(layers=1, batch=16)
    unlabelled = ("a text of a log", text.title())
    batches = text_batches(dataset, settings, held_out=np.array([3]), unlabelled=unlabelled)

    instances = len(dataset.train)
    assert 3 not in batches.queries and 3 not in batches.keys
    assert instances + len(labels) - 1 not in batches.others
    assert instances + len(labels) in batches.others  # the text of a log
    assert instances + len(labels) + 1 not in batches.others
    drawn = np.concatenate([batches.batch(number).texts for number in range(20)])
    assert set(drawn.tolist()) == set(batches.queries.tolist()) | set(batches.others.tolist())


def test_a_batch_has_the_share_of_queries() -> None:
    settings = DistillationSettings(layers=1, batch=20, query_share=0.4, keys=5)
    dataset = tiny_dataset()
    batch = text_batches(dataset, settings, held_out=np.zeros(0, np.int64)).batch(7)
    assert (batch.texts < len(dataset.train)).sum() == 8
    assert len(batch.texts) == 20
    assert len(set(batch.keys.tolist())) == 5


def test_unlabelled_texts_are_learned_and_kept(distill: Distill, tmp_path: Path) -> None:
    texts = tmp_path / "log.txt"
    texts.write_text("a tent\n\n  a lamp \na tent\n", encoding="utf-8")
    dataset = tiny_dataset()
    known = dataset.train.instances.texts[0]
    unlabelled = without((*read_texts(texts), known), (dataset.train.instances.texts,))
    assert unlabelled == ["a tent", "a lamp"]
    distill(tmp_path / "run", unlabelled=unlabelled)
    with np.load(tmp_path / "vectors" / VECTORS) as stored:
        assert stored["unlabelled"].shape[0] == 2


@pytest.mark.parametrize(
    ("content", "message"), [(b"\n \n", "has no text"), (b"\xff\n", "is not UTF-8")]
)
def test_a_file_without_texts_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "log.txt").write_bytes(content)
    with pytest.raises(InvalidData, match=message):
        read_texts(tmp_path / "log.txt")
    with pytest.raises(InvalidData, match="cannot be read"):
        read_texts(tmp_path / "missing.txt")
