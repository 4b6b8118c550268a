"""What the training loop trains in a distillation: the student, by the teacher's vectors.

Shapes: N training instances, L labels, T unlabelled texts, B texts of a batch, b keys, d
dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from service.core.types import Floats, Rows
from training.distillation.batches import TextBatch
from training.distillation.losses import cosine_distance, similarity_divergence
from training.distillation.settings import DistillationSettings
from training.distillation.teacher import TeacherVectors
from training.loop.model import TrainedModel
from training.systems.system import EncoderOnly


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedTexts:
    """The texts of a batch with the student's vectors."""

    batch: TextBatch
    vectors: Tensor  # [B, d]


class TeacherImitation(EncoderOnly[DistillationSettings]):
    """The system of a distillation: the distance to the teacher's vectors is the loss."""

    def __init__(self, settings: DistillationSettings, teacher: TeacherVectors) -> None:
        super().__init__(settings)
        self._label_keys = teacher.label_keys
        # Both are [N + L + T, d].
        self._targets = _table(teacher.instances, teacher.labels, teacher.unlabelled)
        self._keys = self._targets
        if teacher.label_keys is not teacher.labels:
            self._keys = _table(teacher.instances, teacher.label_keys, teacher.unlabelled)

    def loss(self, batch: Any) -> Tensor:
        """The cosine distance, and the divergence of similarities where it has a weight.

        `batch` is `EncodedTexts`, where other systems take an `EncodedBatch`.
        """
        student, drawn = batch.vectors, batch.batch
        teacher = self._targets[drawn.texts].to(student.device)
        distance = cosine_distance(student=student, teacher=teacher)
        if not self._settings.similarity:
            return distance
        divergence = similarity_divergence(
            student=student,
            teacher=teacher,
            keys=self._keys[drawn.keys].to(student.device),
            tau=self._settings.tau,
        )
        return distance + self._settings.similarity * divergence

    def label_keys(self, vectors: Floats) -> Floats:
        """The teacher's label keys, [L, d], whatever the student's vectors are."""
        return self._label_keys


@dataclass(kw_only=True, eq=False)
class StudentModel(TrainedModel):
    """The student in the trained encoder's place; it encodes texts of both kinds as queries."""

    system: TeacherImitation
    teacher: TeacherVectors
    held_out: Rows  # training rows that measure

    def texts_of(self, batch: Any) -> Rows:
        """The texts that a `TextBatch` encodes."""
        texts: Rows = batch.texts
        return texts

    def loss_of(self, batch: Any) -> Callable[[Tensor], Tensor]:
        """The loss of a `TextBatch` as a function of the vectors of its texts."""
        return lambda vectors: self.system.loss(EncodedTexts(batch=batch, vectors=vectors))

    def memory_keys(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats]:
        """The teacher's keys, with the student's vectors for the held-out rows, the queries."""
        instances, held_out = self.teacher.instances.copy(), self.held_out
        if len(held_out):
            instances[held_out] = self.embedder.vectors(
                held_out, progress=lambda done: progress(done, len(held_out))
            )
        return instances, self.teacher.label_keys


def _table(*parts: Floats) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
