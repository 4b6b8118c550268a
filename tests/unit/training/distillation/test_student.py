"""The student before training: whose layers it has, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from service.core.errors import InvalidInput
from service.core.types import Role
from tests.unit.training.distillation.conftest import LAYERS
from training.checkpoints.model_folder import write_model
from training.distillation.settings import DistillationSettings
from training.distillation.student import (
    first_student,
    layer_stack,
    load_student,
    make_student,
    spaced_layers,
)
from training.evaluation.encode_texts import encode_texts
from training.models.torch_encoder import load_encoder


@pytest.mark.parametrize(
    ("total", "count", "layers"),
    [
        (6, 6, [0, 1, 2, 3, 4, 5]),
        (6, 4, [0, 2, 3, 5]),
        (6, 3, [1, 3, 5]),
        (6, 2, [2, 5]),
        (6, 1, [5]),
        (6, 0, []),
        (12, 3, [3, 7, 11]),
    ],
)
def test_layers_lie_at_equal_distances_and_the_last_is_one_of_them(
    total: int, count: int, layers: list[int]
) -> None:
    assert spaced_layers(total, count) == layers


@pytest.mark.parametrize("count", [-1, 7])
def test_more_layers_than_the_teachers_are_refused(count: int) -> None:
    with pytest.raises(InvalidInput, match=r"layers: must lie in 0\.\.6"):
        spaced_layers(6, count)


def test_a_student_has_the_teachers_weights_and_leaves_the_teacher_whole(
    teacher_folder: Path,
) -> None:
    teacher = load_encoder(str(teacher_folder))
    student = make_student(teacher, layers=2)

    _, of_teacher = layer_stack(teacher.model, name="teacher")
    _, of_student = layer_stack(student.model, name="student")
    assert len(of_teacher) == LAYERS
    for layer, original in zip(of_student, (of_teacher[1], of_teacher[3]), strict=True):
        for weights, expected in zip(layer.parameters(), original.parameters(), strict=True):
            assert torch.equal(weights, expected)
            assert weights is not expected


def test_all_layers_give_the_teachers_vectors(teacher_folder: Path) -> None:
    teacher = load_encoder(str(teacher_folder))
    student = make_student(teacher, layers=LAYERS)
    texts = ("red tent", "lamp")
    expected = encode_texts(teacher, texts, role=Role.QUERY)
    assert np.array_equal(encode_texts(student, texts, role=Role.QUERY), expected)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_student_loads_as_any_checkpoint_does(
    layers: int, teacher_folder: Path, tmp_path: Path
) -> None:
    teacher = load_encoder(str(teacher_folder))
    student = make_student(teacher, layers=layers)
    write_model(student, tmp_path / "student")

    loaded = load_student(str(tmp_path / "student"), teacher, layers=layers)
    expected = encode_texts(student, ("red tent",), role=Role.QUERY)
    assert np.allclose(
        encode_texts(loaded, ("red tent",), role=Role.QUERY), expected, rtol=0, atol=1e-6
    )
    with pytest.raises(InvalidInput, match=f"has {layers} layers, not 4"):
        load_student(str(tmp_path / "student"), teacher, layers=4)


def test_a_static_student_knows_tokens_but_no_neighbours(teacher_folder: Path) -> None:
    """Without layers and positions, the order of the tokens does not matter."""
    student = make_student(load_encoder(str(teacher_folder)), layers=0)
    transformer, _ = layer_stack(student.model, name="student")
    with torch.no_grad():
        transformer.embeddings.position_embeddings.weight.zero_()
    first, second = encode_texts(student, ("tent", "tnet"), role=Role.QUERY)
    assert np.allclose(first, second, rtol=0, atol=1e-6)


def test_ngrams_are_added_to_the_student_only(teacher_folder: Path) -> None:
    teacher = load_encoder(str(teacher_folder))
    student = first_student(teacher, DistillationSettings(layers=0, ngrams=64))
    assert len(student.model) == len(teacher.model) + 1


def test_a_teacher_without_layers_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'table' is no transformer with layers"):
        layer_stack(torch.nn.Embedding(4, 2), name="table")
