"""`python -m loadtests.opponents`: Keymatch next to the plain way to serve the same keys.

The opponent, the plain stack, runs in its own server process at the same time and gets the same
traffic in turn. It encodes queries with all-MiniLM-L6-v2, so only the speed is compared. It needs
the extra `training`. Writes opponents.json and opponents.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtests.harness import option
from loadtests.report import Row
from loadtests.resources import process_tree, resident
from loadtests.scale import build
from loadtests.versions import TwoServers
from service.child_server import Server, free_port, running_server, stopped_afterwards
from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.index.libraries import IndexParameters

TIMES_THE_PLAIN_STACK = 12.0  # goal for the throughput at saturation
READY_SECONDS = 900.0  # importing torch and building the index, on a busy machine


@dataclass(frozen=True, kw_only=True)
class Opponents(TwoServers):
    """A bundle, and the plain stack over the vectors of its keys."""

    title = "Keymatch and the plain stack"

    keys: int | None = option("The number of the bundle's keys to use. Default: all.", None)

    def rows(self) -> Iterator[Row]:
        """Start both servers, compare them, and measure their memory."""
        bundle, graph = self.bundle, manifest.read(self.bundle).index.parameters()
        if self.keys is not None:
            library = manifest.read(bundle).index.library
            bundle = build(
                open_bundle(bundle),
                self.out / "bundles",
                keys=self.keys,
                vectors="own",
                library=library,
                seed=self.seed,
            ).folder
        quiet = ["--no-access-log"]
        with (
            plain_stack(bundle / "keys.npy", graph) as plain,
            running_server(bundle, options=quiet) as keymatch,
        ):
            for row in self.compared(plain=plain, keymatch=keymatch):
                yield row
                if row.what == "8 connections: requests a second":
                    what, ratio = (
                        "saturation of Keymatch over the plain stack's",
                        row.figures["ratio"],
                    )
                    yield Row.bounded(what, ratio, least=TIMES_THE_PLAIN_STACK, unit="x")
            for name, server in (("plain", plain), ("keymatch", keymatch)):
                megabytes = sum(resident(pid).total for pid in process_tree(server.pid))
                measured = f"{megabytes:.0f} MB resident after the load"
                yield Row(what=f"size: {name}", measured=measured)


@contextmanager
def plain_stack(keys: Path, graph: IndexParameters) -> Iterator[Server]:
    """Serve the vectors of a .npy file with the plain stack during the block."""
    port = free_port()
    command = [sys.executable, "-m", "loadtests.plain_stack", "--keys", str(keys.absolute())]
    command += ["--port", str(port), "--m", str(graph.m), "--ef", str(graph.ef)]
    command += ["--ef-construction", str(graph.ef_construction)]
    with TemporaryDirectory(prefix="plain-stack-") as folder:
        server = Server(command, log=Path(folder) / "server.log", port=port)
        with stopped_afterwards(server, ready_seconds=READY_SECONDS):
            yield server


if __name__ == "__main__":
    Opponents.command()
