"""What a teacher may be, and its stored vectors."""

from pathlib import Path

import numpy as np
import pytest

from service.core.errors import InvalidData, InvalidInput
from service.core.types import Role
from tests.support.tiny.training import tiny_dataset
from training.distillation.teacher import VECTORS, open_teacher, teacher_vectors
from training.evaluation.encode_texts import encode_texts

DEMO = Path("deploy/demo/encoder")


def test_vectors_are_computed_once(
    teacher_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, dataset = open_teacher(str(teacher_folder)), tiny_dataset()
    first = teacher_vectors(teacher, dataset, folder=tmp_path)
    expected = encode_texts(teacher.encoder, dataset.labels.texts, role=Role.LABEL)
    assert np.array_equal(first.labels, expected)
    assert first.label_keys is first.labels

    monkeypatch.setattr("training.distillation.teacher.encode_texts", None)
    again = teacher_vectors(teacher, dataset, folder=tmp_path)
    assert np.array_equal(again.instances, first.instances)


def test_vectors_of_another_teacher_are_computed_again(
    teacher_folder: Path, model: Path, tmp_path: Path
) -> None:
    dataset = tiny_dataset()
    first = teacher_vectors(open_teacher(str(teacher_folder)), dataset, folder=tmp_path)
    other = teacher_vectors(open_teacher(str(model)), dataset, folder=tmp_path)
    assert not np.allclose(first.labels, other.labels)
    (tmp_path / VECTORS).write_bytes(b"damaged")
    again = teacher_vectors(open_teacher(str(model)), dataset, folder=tmp_path)
    assert np.array_equal(again.labels, other.labels)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no such folder"):
        open_teacher(str(tmp_path / "nowhere"))


def test_an_export_without_origin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "encoder.json").write_text('{"encoder": {"max_tokens": 32}, "predictor": {}}')
    with pytest.raises(InvalidData, match="does not say which encoder"):
        open_teacher(str(tmp_path))


def test_the_demos_export_is_a_teacher_again() -> None:
    """Its graph in int8 and its weights in floating point give nearly the same vectors."""
    from export.exported_encoder import open_exported
    from service.core.encoding.encoder import OnnxEncoder, encode

    texts = ("thesaurus", "give up the ghost", "zymurgy", "abecedarian")
    facts = open_exported(DEMO).description.encoder
    graph = encode(OnnxEncoder(DEMO, facts), texts, role=Role.QUERY)
    teacher = open_teacher(str(DEMO))
    weights = encode_texts(teacher.encoder, texts, role=Role.QUERY)
    assert (graph * weights).sum(axis=1).min() > 0.98
    assert teacher.choices is not None and teacher.choices.tau == 0.12
    assert teacher.encoder.max_tokens == facts.max_tokens
