"""The systems that can be trained: one file each, readable beside its paper, and a line here.

A system's file has `Settings`, a frozen dataclass with the numbers of its `[system]` table, and
`build(settings, task) -> System`.

Shapes: B instances, P labels of the pool, d dimensions, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from service.core.config import parse
from service.core.errors import InvalidConfig
from service.core.types import Floats
from training.batches.batch import Batch
from training.checkpoints.choices import Choices
from training.models.sharding import Sharding
from training.selection.validation import Validation


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """A batch as the losses see it; the masks are those of `batch.Batch` as tensors."""

    instances: Tensor  # [B, d] unit vectors
    labels: Tensor  # [P, d] unit vectors; [0, d] where the system encodes no labels
    pool: Tensor  # [P] the labels' columns
    sampled: Tensor  # [B, P]
    positives: Tensor  # [B, P]
    negatives: Tensor  # [B, P]
    strangers: Tensor  # [B, B]

    @property
    def label_scores(self) -> Tensor:
        """s(x, l), [B, P]."""
        return self.instances @ self.labels.T

    @property
    def instance_scores(self) -> Tensor:
        """s(x, x'), [B, B]."""
        return self.instances @ self.instances.T


def encoded(batch: Batch, vectors: Tensor) -> Encoded:
    """A batch with the vectors [B + P, d] of its instances and then its pool, where they lie.

    [B, d] where the system encodes no labels.
    """

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(vectors.device)

    count = len(batch.rows)
    return Encoded(
        instances=vectors[:count],
        labels=vectors[count:],
        pool=tensor(batch.pool.astype(np.int64)),
        sampled=tensor(batch.sampled),
        positives=tensor(batch.positives),
        negatives=tensor(batch.negatives),
        strangers=tensor(batch.strangers),
    )


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a system must know of the data before it can be built.

    `label_vectors()` [L, d] and `instance_vectors()` [n, d] are the untrained encoder's, the latter
    of the rows that train, with `labels_of` [n, L].
    """

    labels: int
    dimension: int
    label_vectors: Callable[[], Floats]
    instance_vectors: Callable[[], Floats]
    labels_of: csr_matrix
    sharding: Sharding = field(default_factory=Sharding)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """What is known when training has ended: the encoder's vectors of all training rows and labels.

    `keys` are what was chosen to stand for labels in the memory, `choices` its lambda and
    temperature, `own` the system's own parameters, whole.
    """

    validation: Validation
    instances: Floats  # [N, d]
    labels: Floats  # [L, d]
    keys: Floats  # [L, d]
    choices: Choices
    own: Mapping[str, Tensor]


class System(Protocol):
    """What the trainer asks of a system."""

    encodes_labels: bool  # false where labels are rows of a table
    own: nn.Module | None  # parameters beside the encoder's
    sparse: tuple[str, ...]  # those of them that move by rows, dealt out to processes

    def loss(self, batch: Encoded) -> Tensor:
        """The batch's loss, a scalar."""
        ...

    def label_keys(self, vectors: Floats) -> Floats:
        """Z, what stands for the labels in the memory, [L, d]; `vectors` are the encoder's."""
        ...

    def decide(self, trained: Trained | None, folder: Path) -> str:
        """Choose on held-out rows what this system alone has, and write it beside the weights.

        None: nothing was held out. Returns what to say of it, if anything.
        """
        ...


Settings = TypeVar("Settings")


class NothingOfItsOwn:
    """A system about which nothing more is to be chosen."""

    def decide(self, trained: Trained | None, folder: Path) -> str:
        """See `System.decide`."""
        return ""


class EncoderAlone(NothingOfItsOwn, Generic[Settings]):
    """A system whose only parameters are the encoder's, which reads instances and labels alike."""

    encodes_labels = True
    own = None
    sparse = ()

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def label_keys(self, vectors: Floats) -> Floats:
        """The labels' own vectors, as they are."""
        return vectors


SYSTEMS = {
    "rae": "training.systems.rae",
    "dual-encoder": "training.systems.dual_encoder",
    "ngame": "training.systems.ngame",
    "one-versus-all": "training.systems.one_versus_all",
    "irene": "training.systems.irene.system",
    "supcon-de": "training.systems.supcon_de",
}


def build(table: Mapping[str, Any], task: Task, *, source: str) -> System:
    """Build the system that a recipe's `[system]` table names.

    Raises `InvalidConfig` naming the key and what is allowed.
    """
    settings = dict(table)
    name = settings.pop("name", None)
    if name not in SYSTEMS:
        raise InvalidConfig(f"{source}: system.name must be one of {', '.join(SYSTEMS)}")
    module = import_module(SYSTEMS[name])
    parsed = parse(module.Settings, settings, source=f"{source}: system")
    system: System = module.build(parsed, task)
    return system
