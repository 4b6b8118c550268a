"""Peers: published systems by others, trained on the same rows and measured by the same code.

A peer is a module and a line in `PEERS`. Its module has

    Settings    a frozen dataclass of all training settings
    train(data, settings, *, folder) -> TrainedPeer; a model may be kept in `folder`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from numpy.typing import NDArray

from service.core.errors import InvalidInput, MissingExtra
from training.datasets.dataset import Dataset
from training.evaluation.results import Result
from training.peers.training_data import PeerTrainingData


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer's module, and the name of its method in reports."""

    module: str
    system: str


class TrainedPeer(Protocol):
    """A trained peer that ranks labels, and what it was trained with."""

    @property
    def libraries(self) -> Mapping[str, str]:
        """The version of each package that it uses."""
        ...

    @property
    def device(self) -> str | None:
        """The GPU's name, None for the processor."""
        ...

    @property
    def held_out_rows(self) -> int:
        """How many training rows were held out, and used for choices instead of training."""
        ...

    def measure(self, dataset: Dataset) -> list[tuple[Result, NDArray[Any]]]:
        """Rank labels for all test rows, with each method that the peer has."""
        ...


class PeerModule(Protocol):
    """The contents of a peer's module."""

    Settings: type[Any]

    def train(self, data: PeerTrainingData, settings: Any, *, folder: Path) -> TrainedPeer:
        """Train the peer."""
        ...


PEERS = {
    "bm25": Peer(module="training.peers.bm25", system="BM25"),
    "omikuji": Peer(module="training.peers.parabel", system="Parabel"),
    "xr-linear": Peer(module="training.peers.xr_linear", system="XR-Linear"),
    "plt": Peer(module="training.peers.plt", system="PLT"),
    "mnrl": Peer(module="training.peers.mnrl", system="MNRL"),
}


def load(name: str) -> PeerModule:
    """Import the module of a peer in `PEERS`, and with it the peer's library.

    Raises `InvalidInput` for an unknown name, and `MissingExtra` if the library is not installed.
    """
    if name not in PEERS:
        raise InvalidInput(f"{name!r} is unknown; there are {', '.join(PEERS)}", field="peer")
    try:
        return cast(PeerModule, import_module(PEERS[name].module))
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="benchmark") from error
