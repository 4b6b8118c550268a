"""`python -m loadtests.parts.live_bytes --bundle DIR`: what live rows and labels take of memory.

A memory learns rows of one shape, made of random numbers and letters, in a process for each shape;
a block is sealed whenever it is full, as in the service; its keys then lie in a mapped file, which
is counted only where it was read. Reports the growth of each process for a row, the same with a
key, and what `service/core/memory/memory_size.py` estimates, which `live_bytes` is compared with.
Writes live_bytes.json and live_bytes.md.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts import App

from loadtests.measure.environment import environment
from loadtests.measure.footprint import resident
from loadtests.results.result_table import Report, Row
from service.command_line import run
from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import read
from service.core.changes import Change, PutInstance, PutLabel
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.memory_size import BYTES_A_NUMBER
from service.core.memory.segment_store import SegmentStore
from service.core.types import Halves, NewInstance, NewLabel

COMMIT = 200  # changes that are published together

app = App(name="loadtests.parts.live_bytes", help=__doc__)


class Shapes:
    """Changes of several shapes, endlessly; vectors of `dimension`."""

    def __init__(self, dimension: int) -> None:
        """Begin with the first change."""
        self._numbers = np.random.default_rng(0)
        self._dimension = dimension

    def labels(
        self, *, queries: int = 0, characters: int = 20, entries: int = 0
    ) -> Iterator[Change]:
        """New labels with so many queries and metadata entries; texts of so many characters."""
        sequence = 0
        while True:
            sequence += 1
            label = NewLabel(
                id=f"label {sequence}",
                text=self._text(characters),
                queries=tuple(self._text(characters) for _ in range(queries)),
                metadata={f"entry {number}": self._text(40) for number in range(entries)},
            )
            yield PutLabel(sequence=sequence, label=label, vectors=self._vectors(1 + queries))

    def clicks(self, *, characters: int = 20, weight: float = 1.0) -> Iterator[Change]:
        """New queries that were clicked for a first label, with this weight."""
        yield PutLabel(
            sequence=1, label=NewLabel(id="clicked", text="clicked"), vectors=self._vectors(1)
        )
        sequence = 1
        while True:
            sequence += 1
            query = self._text(characters)
            instance = NewInstance(query=query, labels=("clicked",), weight=weight)
            yield PutInstance(sequence=sequence, instance=instance, vectors=self._vectors(1))

    def _text(self, characters: int) -> str:
        return self._numbers.integers(97, 123, characters, dtype=np.uint8).tobytes().decode()

    def _vectors(self, rows: int) -> Halves:
        vectors = self._numbers.standard_normal((rows, self._dimension))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "labels of 20 characters": ("labels", {}),
    "labels of 2,000 characters": ("labels", {"characters": 2_000}),
    "labels with 10 queries": ("labels", {"queries": 10}),
    "labels with 20 metadata entries": ("labels", {"entries": 20}),
    "clicks of 20 characters": ("clicks", {}),
    "clicks of 20 characters with a weight": ("clicks", {"weight": 2.0}),
}


def grown(bundle_folder: Path, shape: str, rows: int) -> tuple[int, int, int]:
    """Let a memory learn `rows` rows; returns their number, bytes of growth, bytes estimated."""
    bundle = open_bundle(bundle_folder)
    memory = KnowledgeMemory(bundle)
    method, options = SHAPES[shape]
    changes = getattr(Shapes(bundle.keys.shape[1]), method)(**options)
    with tempfile.TemporaryDirectory() as folder:
        store = SegmentStore(Path(folder))
        memory.apply([next(changes)])
        before = resident(os.getpid()).total
        while memory.view.live_rows < rows:
            memory.apply(list(islice(changes, COMMIT)))
            _seal(memory, store)
        growth = round(1e6 * (resident(os.getpid()).total - before))
    return memory.view.live_rows, growth, memory.view.live_bytes


def _seal(memory: KnowledgeMemory, store: SegmentStore) -> None:
    for plan in list(memory.view.unsealed_plans()):
        vectors = memory.view.vectors(plan.rows)
        parameters = memory.view.bundle.manifest.index.parameters()
        key = store.key(vectors, parameters)
        store.build(key, vectors, parameters)
        segment = store.find(key, parameters, shape=vectors.shape)
        memory.attach(memory.seal(plan, segment))


@app.default
def live_bytes(*, bundle: Path, out: Path, rows: int = 50_000) -> int:
    """Measure every shape and report.

    Parameters
    ----------
    bundle
        The bundle whose dimension and index parameters are taken.
    out
        Folder for live_bytes.json and live_bytes.md.
    rows
        How many rows of each shape are learned, at least.
    """
    spawned = multiprocessing.get_context("spawn")
    table = []
    for shape in SHAPES:
        with ProcessPoolExecutor(1, mp_context=spawned) as child:
            learned, growth, estimated = child.submit(grown, bundle, shape, rows).result()
        key = BYTES_A_NUMBER * read(bundle).encoder.dimension
        table.append(
            Row(
                what=shape,
                goal="-",
                measured=f"{growth / learned:,.0f}, with its key {growth / learned + key:,.0f};"
                f" estimated {estimated / learned:,.0f}",
                figures={"rows": learned, "growth": growth, "key": key, "estimated": estimated},
            )
        )
    Report(
        title="Live memory: bytes a row",
        settings={"bundle": bundle.name, "rows": rows},
        environment=environment(),
        rows=table,
    ).publish(out, "live_bytes")
    return 0


if __name__ == "__main__":
    sys.exit(run(app))
