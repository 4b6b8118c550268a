"""The servers that are compared: Keymatch and the opponents, all running at the same time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtests.opponents.registry import KEYMATCH, Opponent, Requests
from loadtests.opponents.stores import Setup, Store, server_environment
from training.experiments.service_process import (
    Server,
    free_port,
    running_process,
    running_server,
)

READY_SECONDS = 300.0  # on a busy machine torch alone takes a minute to import


@dataclass(frozen=True, kw_only=True)
class Side:
    """A system that runs."""

    name: str
    server: Server
    requests: Requests


@contextmanager
def running_sides(setup: Setup, stores: Mapping[str, Store]) -> Iterator[list[Side]]:
    """Start Keymatch and the opponents one after the other, and stop them after the block."""
    with ExitStack() as servers:
        keymatch = running_server(stores["keymatch"].path, options=["--no-access-log"])
        sides = [Side(name="keymatch", server=servers.enter_context(keymatch), requests=KEYMATCH)]
        for name, opponent in setup.opponents.items():
            server = servers.enter_context(running_opponent(opponent, setup, stores[name]))
            sides.append(Side(name=name, server=server, requests=opponent.requests))
        yield sides


@contextmanager
def running_opponent(opponent: Opponent, setup: Setup, store: Store) -> Iterator[Server]:
    """Serve a copy of an opponent's store for the block, since inserts would change the store."""
    port = free_port()
    with TemporaryDirectory(prefix="opponent-") as folder:
        copied = Path(shutil.copytree(store.path, Path(folder) / "store"))
        command = [*setup.command(opponent, "serve", copied), "--port", str(port)]
        with running_process(
            command,
            port=port,
            state=copied,
            ready_seconds=READY_SECONDS,
            environment=server_environment(),
        ) as server:
            yield server
