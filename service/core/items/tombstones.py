"""Which places of a growing list are dead: a persistent bitmap, cut into small pieces.

A death copies one piece and a few nodes of a map, however many places there are; a bitmap of all
places is put together once for each view that is searched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rpds import HashTrieMap

from service.core.types import Bits

PIECE_PLACES = 4_096


@dataclass(frozen=True, kw_only=True, slots=True)
class Tombstones:
    """The dead places, `count` of them; `pieces` hold the bitmaps of pieces with a dead place."""

    pieces: HashTrieMap[int, Bits] = field(default_factory=HashTrieMap)
    count: int = 0

    def __contains__(self, place: int) -> bool:
        """Whether the place is dead."""
        number, bit = divmod(place, PIECE_PLACES)
        piece = self.pieces.get(number)
        return piece is not None and not piece[bit >> 3] >> (bit & 7) & 1

    def with_dead(self, place: int) -> Tombstones:
        """Return the tombstones in which `place` is dead as well."""
        if place in self:
            return self
        number, bit = divmod(place, PIECE_PLACES)
        before = self.pieces.get(number)
        piece = _all_alive(PIECE_PLACES) if before is None else before.copy()
        piece[bit >> 3] &= 0xFF ^ (1 << (bit & 7))
        return Tombstones(pieces=self.pieces.insert(number, piece), count=self.count + 1)

    def without(self, place: int) -> Tombstones:
        """Return the tombstones in which `place` is alive again."""
        if place not in self:
            return self
        number, bit = divmod(place, PIECE_PLACES)
        piece = self.pieces[number].copy()
        piece[bit >> 3] |= 1 << (bit & 7)
        return Tombstones(pieces=self.pieces.insert(number, piece), count=self.count - 1)

    def alive(self, places: int) -> Bits | None:
        """Return the little-endian bitmap of the first `places`; None where none of all is dead."""
        if not self.count:
            return None
        bits, size = _all_alive(places), PIECE_PLACES // 8
        for number, piece in self.pieces.items():
            start = number * size
            bits[start : start + size] = piece[: max(0, len(bits) - start)]
        return bits


def _all_alive(places: int) -> Bits:
    return np.full(-(-places // 8), 0xFF, np.uint8)
