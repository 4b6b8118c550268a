"""Persistent sets whose keys are sorted.

The maps of `rpds` are unsorted, but a page of items needs its ids in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

Key = tuple[Any, ...]  # such as a text and a place: equal texts are ordered by place

MOST = 256  # keys per chunk; a larger chunk is cut in half


@dataclass(frozen=True)
class SortedKeys:
    """Different keys in ascending order; `insert` and `discard` return a new set.

    The keys are stored in sorted chunks, and the chunks are in ascending order. A change copies one
    chunk and the references to the others. It takes a few microseconds for a million keys.
    """

    chunks: tuple[tuple[Key, ...], ...] = ()

    def insert(self, key: Key) -> SortedKeys:
        """Return the set with `key`."""
        number = self._chunk_of(key)
        chunk = self.chunks[number] if self.chunks else ()
        place = bisect_left(chunk, key)
        if chunk[place : place + 1] == (key,):
            return self
        chunk = (*chunk[:place], key, *chunk[place:])
        if len(chunk) <= MOST:
            return self._with(number, chunk)
        return self._with(number, chunk[: MOST // 2], chunk[MOST // 2 :])

    def discard(self, key: Key) -> SortedKeys:
        """Return the set without `key`."""
        number = self._chunk_of(key)
        chunk = self.chunks[number] if self.chunks else ()
        place = bisect_left(chunk, key)
        if chunk[place : place + 1] != (key,):
            return self
        smaller = (*chunk[:place], *chunk[place + 1 :])
        return self._with(number, smaller) if smaller else self._with(number)

    def above(self, key: Key) -> Iterator[Key]:
        """Yield the keys that are greater than `key`, ascending."""
        number = self._chunk_of(key)
        for chunk in self.chunks[number : number + 1]:
            yield from chunk[bisect_right(chunk, key) :]
        for chunk in self.chunks[number + 1 :]:
            yield from chunk

    def places(self, text: str) -> Iterator[int]:
        """Yield the places of the keys with this text, ascending."""
        alike = takewhile(lambda key: key[0] == text, self.above((text, -1)))
        return (place for _, place in alike)

    def starting_with(self, text: str) -> Iterator[int]:
        """Yield the places of the keys whose text begins with `text`, by their texts."""
        alike = takewhile(lambda key: key[0].startswith(text), self.above((text, -1)))
        return (place for _, place in alike)

    def first(self, text: str) -> int | None:
        """Return the first place of a key with this text, or None if there is none."""
        return next(self.places(text), None)

    def _chunk_of(self, key: Key) -> int:
        """Return the number of the only chunk that may contain the key."""
        return max(0, bisect_right(self.chunks, key, key=lambda chunk: chunk[0]) - 1)

    def _with(self, number: int, *chunks: tuple[Key, ...]) -> SortedKeys:
        """Return the set with `chunks` instead of the chunk at `number`."""
        return SortedKeys((*self.chunks[:number], *chunks, *self.chunks[number + 1 :]))
