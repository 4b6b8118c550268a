"""LEVER: a system that learns a teacher's soft labels beside the clicks.

    L = L_system + w mean over pairs (x, l) of BCE(P_teacher(l | x), sigmoid(logit(x, l)))

over the soft labels in the pool (`training.systems.soft_labels.teacher`). A soft label is no
negative of its row in L_system any more: a label with few rows is missing from many that it fits,
which is what makes its classifier uncertain.

LEVER adds the pairs to the training data of one-versus-all classifiers, where the loss is this one.
Under a softmax the logit is that of a label against the batch's negatives.

Shapes: B instances, P labels of the pool, N training rows, k soft labels of a row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from service.core.errors import InvalidConfig
from training.systems.losses import soft_cross_entropy
from training.systems.soft_labels.settings import SoftLabelSettings
from training.systems.soft_labels.teacher import SoftLabels
from training.systems.system import EncodedBatch, System
from training.systems.wrapped import WrappedSystem


class SoftLabelled(WrappedSystem):
    """A system with a teacher's soft labels; all but the loss is the system's."""

    def __init__(self, system: System, settings: SoftLabelSettings, soft: SoftLabels) -> None:
        super().__init__(system)
        self._settings = settings
        self._labels = torch.from_numpy(soft.labels)  # [N, k]
        self._probabilities = torch.from_numpy(soft.probabilities)  # [N, k]

    def loss(self, batch: EncodedBatch) -> Tensor:
        """L_system, without soft labels as negatives, and the weighted loss of the soft labels."""
        targets, is_soft = self.targets(batch)
        hard = replace(batch, negatives=batch.negatives & ~is_soft)
        soft = soft_cross_entropy(
            logits=self._system.logits(hard), targets=targets, counted=is_soft
        )
        return self._system.loss(hard) + self._settings.weight * soft

    def targets(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """P_teacher(l | x) of the pool's labels [B, P], and which of them are soft labels."""
        rows, device = batch.rows.cpu(), batch.pool.device
        labels = self._labels[rows].to(device)  # [B, k]
        probabilities = self._probabilities[rows].to(device)
        places = torch.searchsorted(batch.pool, labels).clamp(max=len(batch.pool) - 1)
        line, column = (batch.pool[places] == labels).nonzero(as_tuple=True)
        targets = torch.zeros(batch.negatives.shape, device=device)
        targets[line, places[line, column]] = probabilities[line, column]
        is_soft = torch.zeros_like(batch.negatives)
        is_soft[line, places[line, column]] = True
        return targets, is_soft & batch.negatives


def soft_labelled(
    system: System, settings: SoftLabelSettings, soft: SoftLabels | None, *, source: str
) -> System:
    """The system with the soft labels, unchanged where there are none.

    Raises `InvalidConfig` for a system whose loss gives no pair a probability.
    """
    if soft is None:
        return system
    if not system.has_logits:
        raise InvalidConfig(
            f"{source}: soft_labels needs a system whose loss is a softmax or a sigmoid: rae,"
            " dual-encoder, supcon-de, unidec or one-versus-all"
        )
    return SoftLabelled(system, settings, soft)
