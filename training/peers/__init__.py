"""Peers: systems of others, trained on the same rows and measured by the same code as ours.

A peer is a module and a line in `PEERS`. Its module has

    Settings    a frozen dataclass with every number that the peer is trained with
    train(material, settings, *, folder) -> Trained; `folder` is where a model may be kept
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
from training.peers.material import Material


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Where a peer is, and what the report calls the method behind it."""

    module: str
    system: str


class Trained(Protocol):
    """A trained peer, and what it was trained with."""

    @property
    def libraries(self) -> Mapping[str, str]:
        """The version of each package behind it."""
        ...

    @property
    def device(self) -> str | None:
        """The GPU's name, None for the processor."""
        ...

    @property
    def held_out_rows(self) -> int:
        """How many training rows something was chosen on; they did not train."""
        ...

    def measure(self, dataset: Dataset) -> list[tuple[Result, NDArray[Any]]]:
        """Rank the labels of all test rows, in every way that the peer has."""
        ...


class PeerModule(Protocol):
    """What the module of a peer holds."""

    Settings: type[Any]

    def train(self, material: Material, settings: Any, *, folder: Path) -> Trained:
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
    """Import a peer of `PEERS`, and with it the library behind it.

    Raises `InvalidInput` naming the known peers, and `MissingExtra` where the library is missing.
    """
    if name not in PEERS:
        raise InvalidInput(f"{name!r} is unknown; there are {', '.join(PEERS)}", field="peer")
    try:
        return cast(PeerModule, import_module(PEERS[name].module))
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="benchmark") from error
