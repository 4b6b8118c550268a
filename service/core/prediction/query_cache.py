"""A bounded cache of encoded queries; a text's vector never changes, so entries never expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

from cachetools import LRUCache

from service.core.types import Floats


class QueryCache:
    """Least recently used vectors by text; safe between threads."""

    def __init__(self, entries: int) -> None:
        """Keep at most `entries` vectors; 0 keeps none."""
        self._vectors: LRUCache[str, Floats] = LRUCache(entries)
        self._lock = Lock()
        self.hits = 0
        self.misses = 0

    def fill(self, queries: Sequence[str], vectors: Floats) -> list[int]:
        """Copy known vectors into vectors [B, d]; returns the positions that are not known."""
        missing = []
        with self._lock:
            for position, query in enumerate(queries):
                known = self._vectors.get(query)
                if known is None:
                    missing.append(position)
                else:
                    vectors[position] = known
            self.hits += len(queries) - len(missing)
            self.misses += len(missing)
        return missing

    def add(self, encoded: Mapping[str, Floats]) -> None:
        """Remember vectors [d] by text."""
        if self._vectors.maxsize == 0:
            return
        with self._lock:
            for text, vector in encoded.items():
                self._vectors[text] = vector
