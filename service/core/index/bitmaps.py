"""Little-endian bitmaps over places: a set bit means that the row or item there is alive.

None in place of a bitmap means that all are alive.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.types import Bits, Rows


def set_tombstones(alive: Bits | None, places: Sequence[int], size: int) -> Bits:
    """Return a copy of the bitmap over `size` places with the bits of `places` cleared."""
    bits = np.packbits(np.ones(size, bool), bitorder="little") if alive is None else alive.copy()
    dead = np.asarray(places, np.int64)
    # Several places may share a byte; plain assignment would apply only one of them.
    np.bitwise_and.at(bits, dead // 8, (0xFF ^ (1 << (dead % 8))).astype(np.uint8))
    return bits


def count_dead(alive: Bits | None, size: int) -> int:
    """Return how many of the first `size` places are dead."""
    if alive is None:
        return 0
    return size - int(np.unpackbits(alive, bitorder="little", count=size).sum())


def alive_places(alive: Bits | None, size: int) -> Rows:
    """Return those of the first `size` places that are alive, ascending."""
    if alive is None:
        return np.arange(size)
    return np.flatnonzero(np.unpackbits(alive, bitorder="little", count=size))
