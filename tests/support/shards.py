"""The shards of a divided memory within one process, asked without a network."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import Change
from service.core.index.key_parts import KeyShare
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.shards import FoundRows, KeySearch, search_all
from service.core.types import Halves, Rows
from tests.support.changes import seal


class MemoryShards:
    """Shards as memories, which answer at once. Each opens its part of a bundle in parts."""

    def __init__(self, bundle: Bundle, limits: MemoryLimits, *, count: int) -> None:
        self.memories = [
            KnowledgeMemory(
                open_bundle(bundle.folder, parts=[index]),
                limits,
                share=KeyShare(index=index, count=count),
            )
            for index in range(count)
        ]
        self._dimension = bundle.manifest.encoder.dimension

    def apply(self, changes: Sequence[Change]) -> None:
        for memory in self.memories:
            memory.apply(changes)

    def seal(self, folder: Path) -> None:
        for index, memory in enumerate(self.memories):
            (folder / f"{index}").mkdir(exist_ok=True)
            seal(memory, folder / f"{index}")

    def search(self, wanted: KeySearch) -> FoundRows:
        return search_all(wanted, len(self.memories), self._search)

    def _search(self, wanted: KeySearch) -> list[FoundRows]:
        views = [(memory, memory.at(wanted.version)) for memory in self.memories]
        return [
            memory.in_scope(view, wanted.scope).answer(wanted)
            for memory, view in views
            if view is not None
        ]

    def vectors(self, version: int, rows: Rows) -> Halves:
        vectors = np.full((len(rows), self._dimension), np.nan, np.float16)
        for memory in self.memories:
            view = memory.at(version)
            assert view is not None
            held = view.are_alive(rows)
            assert np.isnan(vectors[held]).all()  # no row is in two shards
            vectors[held] = view.vectors(rows[held])
        return vectors
