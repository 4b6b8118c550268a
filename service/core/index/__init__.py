"""Frozen HNSW segments behind one small protocol, so that the index library is a choice.

A segment holds rows that never change. Adding a library means one new file beside this one and
one entry in `LIBRARIES`. `hnswlib` and `faiss` were measured on the same keys with
`python -m loadtests.index_libraries`; README quotes the figures. faiss is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from service.core.errors import BundleUnsupported, InvalidConfig
from service.core.types import Bits, Floats, Halves, Rows

Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class IndexParameters:
    """How the graph is built and searched (RAE-XMC, Appendix A.3 uses M=64, 500, 300).

    `m` is the number of edges a node, `ef_construction` and `ef` the queue sizes when building
    and searching.
    """

    library: str = "faiss"
    m: int = 32
    ef_construction: int = 200
    ef: int = 500

    def __post_init__(self) -> None:
        """Refuse what no library could build."""
        if self.library not in LIBRARIES:
            raise InvalidConfig(
                f"index library {self.library!r} is unknown; choose one of {', '.join(LIBRARIES)}",
                field="library",
            )
        for field, low, high in (("m", 4, 256), ("ef_construction", 8, 4096), ("ef", 8, 4096)):
            if not low <= getattr(self, field) <= high:
                raise InvalidConfig(f"{field} must lie in {low}..{high}", field=field)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """Which rows a search may return: rows in [start, stop) whose bit in `alive` is set.

    `alive` is a little-endian bitmap over all rows of the segment, None when all are alive.
    """

    start: int
    stop: int
    alive: Bits | None = None

    def selected(self) -> int:
        """About how many rows pass: whole bytes of the bitmap are counted."""
        if self.alive is None:
            return self.stop - self.start
        return int(np.bitwise_count(self.alive[self.start // 8 : -(-self.stop // 8)]).sum())

    def allows(self, rows: Rows) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which of `rows`, in any shape, pass; row -1 does not."""
        inside = (rows >= self.start) & (rows < self.stop)
        if self.alive is None:
            return np.asarray(inside)
        bits = self.alive[np.maximum(rows, 0) >> 3] >> (rows & 7).astype(np.uint8)
        return np.asarray(inside & (bits & 1).astype(bool))

    def mask(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """The filter as booleans over [start, stop)."""
        if self.alive is None:
            return np.ones(self.stop - self.start, bool)
        return np.unpackbits(self.alive, bitorder="little")[self.start : self.stop].astype(bool)


class Segment(Protocol):
    """A frozen set of unit vectors that can be searched by inner product."""

    @property
    def rows(self) -> int:
        """How many rows the segment holds."""
        ...

    def search(
        self, queries: Floats, *, count: int, ef: int, among: RowFilter | None
    ) -> tuple[Floats, Rows]:
        """Find the `count` nearest rows of each query.

        Takes queries [B, d]; returns inner products [B, count], descending, and rows
        [B, count]. Places that could not be filled hold row -1.
        """
        ...

    def vectors(self, rows: Rows) -> Halves:
        """The vectors [n, d] of `rows` [n], as they were given to `build`."""
        ...


class SegmentLibrary(Protocol):
    """What a library's file must offer."""

    def build(
        self, vectors: Halves, parameters: IndexParameters, path: Path, progress: Progress
    ) -> None:
        """Build the graph over vectors [R, d] in all cores and write it to `path`."""
        ...

    def open(self, path: Path, *, rows: int, dimension: int) -> Segment:
        """Open a written graph for searching, memory-mapped where the library can."""
        ...


LIBRARIES = {
    "faiss": "service.core.index.faiss_hnsw",
    "hnswlib": "service.core.index.hnswlib_hnsw",
}


def library(name: str) -> SegmentLibrary:
    """Load an index library's adapter by its name in `LIBRARIES`.

    Raises `BundleUnsupported` for an unknown name and `MissingExtra` for an absent package.
    """
    if name not in LIBRARIES:
        raise BundleUnsupported(
            f"index library {name!r} is unknown to this version; known: {', '.join(LIBRARIES)}"
        )
    return cast(SegmentLibrary, import_module(LIBRARIES[name]))


def batches(rows: int, size: int) -> Iterator[slice]:
    """Cut `rows` into slices of at most `size`."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))
