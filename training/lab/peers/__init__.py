"""Peers: systems published by others, trained on the same rows and measured by the same code.

A peer is a module and a line in `PEERS`. Its module has:

    Settings    a frozen dataclass of all training settings
    train(data, settings, *, folder) -> TrainedPeer; a model may be kept in `folder`

Shapes: N training rows, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput, MissingExtra
from service.core.types import Rows
from training.datasets.dataset import Dataset
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.results import Result


@dataclass(frozen=True, kw_only=True, eq=False)
class PeerTrainingData:
    """Training rows with at least one label; filtered pairs are left out."""

    rows: Rows  # [N], row numbers in the train split
    texts: tuple[str, ...]  # N
    labels_of: csr_matrix  # [N, L] float32, ones
    label_texts: tuple[str, ...]  # L


def peer_training_data(dataset: Dataset) -> PeerTrainingData:
    """The train split as our systems use it: binary, without filtered pairs and empty rows.

    Raises `InvalidInput` if no row is left.
    """
    pairs = TrainingPairs(labels_of=dataset.train.labels_of, filtered=dataset.train.filtered)
    rows = pairs.trainable()
    if not len(rows):
        raise InvalidInput("no training row has a label that counts", field="train")
    texts = dataset.train.instances.texts
    return PeerTrainingData(
        rows=rows,
        texts=tuple(texts[row] for row in rows),
        labels_of=csr_matrix(pairs.drawable[rows], dtype=np.float32),
        label_texts=dataset.labels.texts,
    )


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer's module, and the name of its method in reports."""

    module: str
    system: str


class TrainedPeer(Protocol):
    """A trained peer that ranks labels.

    `libraries` are the versions of its packages, `device` is the GPU's name (None: the CPU).
    `held_out_rows` rows were used for choices instead of training.
    """

    @property
    def libraries(self) -> Mapping[str, str]: ...
    @property
    def device(self) -> str | None: ...
    @property
    def held_out_rows(self) -> int: ...

    def measure(self, dataset: Dataset) -> list[tuple[Result, NDArray[Any]]]:
        """Rank labels for all test rows, with each of the peer's methods."""


class PeerModule(Protocol):
    """The contents of a peer's module."""

    Settings: type[Any]

    def train(self, data: PeerTrainingData, settings: Any, *, folder: Path) -> TrainedPeer:
        """Train the peer."""


PEERS = {
    "bm25": Peer(module="training.lab.peers.bm25", system="BM25"),
    "omikuji": Peer(module="training.lab.peers.parabel", system="Parabel"),
    "xr-linear": Peer(module="training.lab.peers.xr_linear", system="XR-Linear"),
    "plt": Peer(module="training.lab.peers.plt", system="PLT"),
    "mnrl": Peer(module="training.lab.peers.mnrl", system="MNRL"),
}


def load(name: str) -> PeerModule:
    """Import the module of a peer in `PEERS`, and thereby the peer's library.

    Raises `InvalidInput` for an unknown name, and `MissingExtra` if the library is not installed.
    """
    if name not in PEERS:
        raise InvalidInput(f"{name!r} is unknown; there are {', '.join(PEERS)}", field="peer")
    try:
        return cast(PeerModule, import_module(PEERS[name].module))
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="benchmark") from error
