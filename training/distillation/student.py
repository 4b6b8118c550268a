"""The student before its first step: the teacher's embeddings and some of its layers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from service.core.errors import InvalidInput
from service.core.types import Role
from training.distillation.settings import DistillationSettings
from training.models.ngrams import ngrams_of, untrained_ngrams
from training.models.settings import NgramSettings
from training.models.torch_encoder import TorchEncoder, load_encoder


def first_student(teacher: TorchEncoder, settings: DistillationSettings) -> TorchEncoder:
    """The student that a distillation starts with: an earlier one, or layers of the teacher.

    Raises `InvalidInput` for layers that do not fit, and for a teacher whose layers are not found.
    """
    if settings.start is not None:
        return load_student(settings.start, teacher, layers=settings.layers)
    student = make_student(teacher, layers=settings.layers)
    if settings.ngrams and ngrams_of(student.model) is None:
        torch.manual_seed(settings.seed)  # of the table's random signs
        table = NgramSettings(buckets=settings.ngrams)
        student.model.append(untrained_ngrams(student.tokenizer, student.dimension, table))
    return student


def make_student(teacher: TorchEncoder, *, layers: int) -> TorchEncoder:
    """A copy of the teacher with `layers` of its layers.

    Without layers it is a static table: token and position embeddings, their norm, and the mean.
    Raises `InvalidInput` for more layers than the teacher has, and for a teacher whose layers are
    not found.
    """
    model = copy.deepcopy(teacher.model)
    transformer, stack = layer_stack(model, name=teacher.name)
    kept = set(spaced_layers(len(stack), layers))
    for place in reversed(range(len(stack))):
        if place not in kept:
            del stack[place]
    transformer.config.num_hidden_layers = layers
    return replace(teacher, model=model)


def load_student(folder: str, teacher: TorchEncoder, *, layers: int) -> TorchEncoder:
    """An earlier student of the same teacher; raises `InvalidInput` where it has other layers."""
    student = load_encoder(
        folder,
        max_tokens=teacher.max_tokens,
        query_prompt=teacher.prompts[Role.QUERY],
        label_prompt=teacher.prompts[Role.LABEL],
    )
    count = transformer_of(student.model, name=folder).config.num_hidden_layers
    if count != layers:
        raise InvalidInput(f"start: {folder} has {count} layers, not {layers}")
    return student


def spaced_layers(total: int, count: int) -> list[int]:
    """`count` of `total` layers at equal distances, the last always among them.

    Of 6 layers, 3 are the second, fourth and sixth (PKD-skip, Sun et al., 2019, and the last).
    """
    if not 0 <= count <= total:
        raise InvalidInput(f"layers: must lie in 0..{total}, the teacher's layers, not {count}")
    return [(place + 1) * total // count - 1 for place in range(count)]


def transformer_of(model: nn.Module, *, name: str) -> Any:
    """The transformer of a sentence-transformers model; raises `InvalidInput` without layers."""
    from transformers import PreTrainedModel

    for module in model.modules():
        if isinstance(module, PreTrainedModel) and hasattr(module.config, "num_hidden_layers"):
            return module
    raise InvalidInput(f"teacher {name!r} is no transformer with layers to take some of")


def layer_stack(model: nn.Module, *, name: str) -> tuple[Any, nn.ModuleList]:
    """The transformer of a sentence-transformers model, and the list of its layers.

    Raises `InvalidInput` where the model has no such list.
    """
    transformer = transformer_of(model, name=name)
    for part in transformer.modules():
        if isinstance(part, nn.ModuleList) and len(part) == transformer.config.num_hidden_layers:
            return transformer, part
    raise InvalidInput(f"teacher {name!r} keeps its layers in no list to take some of")
