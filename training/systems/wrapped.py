"""A system within another one: all but the loss is the inner system's.

Shapes: B instances, P labels of the pool, N training rows, L labels, d dimensions, M items.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from service.core.types import Floats, Rows
from training.systems.system import EncodedBatch, FinishedTraining, System


class WrappedSystem:
    """Gives what the inner system gives; a subclass adds to its loss."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.training_only = system.training_only
        self.encodes_labels, self.head = system.encodes_labels, system.head
        self.sharded_parameters, self.memory_tau = system.sharded_parameters, system.memory_tau
        self.heads, self.has_logits = system.heads, system.has_logits

    def loss(self, batch: EncodedBatch) -> Tensor:
        """That of the system."""
        return self._system.loss(batch)

    def logits(self, batch: EncodedBatch) -> Tensor:
        """Those of the system."""
        return self._system.logits(batch)

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Those of the system."""
        return self._system.text_vectors(batch)

    def label_keys(self, vectors: Floats) -> Floats:
        """Those of the system."""
        return self._system.label_keys(vectors)

    def items_of(self, rows: Rows) -> Rows:
        """Those of the system."""
        return self._system.items_of(rows)

    def instance_keys(self, vectors: Floats, items: Floats) -> Floats:
        """Those of the system."""
        return self._system.instance_keys(vectors, items)

    def look_up(self, vectors: Floats, items: Floats) -> None:
        """Let the system predict the items."""
        self._system.look_up(vectors, items)

    def neighbour_vectors(self, vectors: Floats) -> Floats:
        """Those of the system."""
        return self._system.neighbour_vectors(vectors)

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose the system's settings."""
        return self._system.choose_settings(finished, folder)
