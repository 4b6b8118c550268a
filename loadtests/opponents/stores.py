"""The same keys in every system: a bundle of N keys, and each opponent's store of them.

Built stores are kept in `OUT/stores` and used again by the next run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import orjson
from rich.console import Console

from loadtests.opponents.registry import Opponent
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.content import BundleContent, write_bundle
from service.core.errors import CommandFailed, InvalidInput
from service.core.index.libraries import IndexParameters, load_library

ROOT = Path(__file__).parents[2]
_SECONDS = "seconds.json"


@dataclass(frozen=True, kw_only=True)
class Store:
    """What a server opens, and the seconds that it took to load the keys into it."""

    path: Path
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The opponents, the interpreter that has their packages, and the HNSW graph of all sides."""

    opponents: Mapping[str, Opponent]
    python: Path
    graph: IndexParameters

    def command(self, opponent: Opponent, task: str, store: Path) -> list[str]:
        """The command of one of the two tasks of an opponent's server module."""
        module = f"loadtests.opponents.servers.{opponent.module}"
        graph = ["--m", str(self.graph.m), "--ef-construction", str(self.graph.ef_construction)]
        graph += ["--ef", str(self.graph.ef)]
        return [str(self.python), "-m", module, task, "--store", str(store.absolute()), *graph]


def load_stores(
    bundle: Path, folder: Path, setup: Setup, *, keys: int | None, console: Console
) -> dict[str, Store]:
    """Stores of the same keys in `folder`, by the system's name."""
    keymatch = keymatch_store(bundle, folder, keys=keys)
    stores = {"keymatch": keymatch}
    for name, opponent in setup.opponents.items():
        console.print(f"loading the keys into {opponent.title} ...")
        stores[name] = opponent_store(opponent, setup, folder, keys=keymatch.path / "keys.npy")
    return stores


def keymatch_store(bundle: Path, folder: Path, *, keys: int | None) -> Store:
    """A bundle of the first `keys` keys, with vectors of `bundle`; None: `bundle` itself.

    Instances and labels keep their proportion. The instances vote only for labels that remain. The
    seconds are those of building the index.
    """
    target = bundle if keys is None else folder / "keymatch"
    record = folder / f"keymatch-{_SECONDS}"
    if not record.exists():
        shutil.rmtree(folder / "keymatch", ignore_errors=True)  # of an interrupted run
        opened = open_bundle(bundle)
        start = perf_counter()
        if keys is None:
            _build_index(opened)
        else:
            write_bundle(first_keys(opened, keys), target, progress=lambda done: None)
        _record(record, perf_counter() - start)
    return Store(path=target, seconds=_recorded(record))


def _build_index(bundle: Bundle) -> None:
    """Build the index of a bundle again, to see how long it takes."""
    parameters = bundle.manifest.index.parameters()
    with TemporaryDirectory(prefix="keymatch-index-") as folder:
        load_library(parameters.library).build(
            bundle.keys, parameters, Path(folder) / "index", lambda done: None
        )


def opponent_store(opponent: Opponent, setup: Setup, folder: Path, *, keys: Path) -> Store:
    """Load the vectors of a bundle's keys.npy into an opponent's own store."""
    target, record = folder / opponent.module, folder / f"{opponent.module}-{_SECONDS}"
    if not record.exists():
        shutil.rmtree(target, ignore_errors=True)  # of an interrupted run
        command = [*setup.command(opponent, "build", target), "--keys", str(keys.absolute())]
        done = subprocess.run(command, env=server_environment(), capture_output=True, text=True)
        if done.returncode:
            raise CommandFailed(f"{opponent.title} took no keys:\n{done.stderr[-2_000:]}")
        _record(record, float(done.stdout.splitlines()[-1]))
    return Store(path=target, seconds=_recorded(record))


def server_environment() -> dict[str, str]:
    """This process's environment, with which the other interpreter finds the server modules."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def first_keys(bundle: Bundle, keys: int | None) -> BundleContent:
    """The first instances and labels of a bundle in proportion, `keys` in all."""
    total = bundle.instances + bundle.labels
    kept = total if keys is None else keys
    if not 2 <= kept <= total:
        raise InvalidInput(f"keys must be 2 to {total:,}, the bundle's, not {kept}", field="keys")
    instances = kept * bundle.instances // total
    labels = kept - instances
    columns = np.asarray(bundle.indices[: bundle.indptr[instances]])
    remains = columns < labels
    # Votes before each instance, counting only those for labels that remain.
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


def _record(path: Path, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(seconds))


def _recorded(path: Path) -> float:
    return float(orjson.loads(path.read_bytes()))
