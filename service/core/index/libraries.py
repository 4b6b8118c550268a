"""The table of index libraries, and the parameters with which they build a graph.

To add a library, write one module with the functions of `SegmentLibrary` and add one line to
`LIBRARIES`. faiss is the default: `python -m loadtests.parts.index_libraries` measures the
libraries on the same keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from service.core.errors import BundleUnsupported, InvalidConfig
from service.core.index.protocol import Progress, Segment
from service.core.types import Halves

LIBRARIES = {
    "faiss": "service.core.index.faiss_hnsw",
    "hnswlib": "service.core.index.hnswlib_hnsw",
}


SMALLEST_EF, LARGEST_EF = 8, 4096


@dataclass(frozen=True, kw_only=True)
class IndexParameters:
    """How the graph is built and searched (RAE-XMC, Appendix A.3, uses M=64, 500 and 300).

    `m` is the number of edges per node, `ef_construction` and `ef` are the lengths of the queue
    while building and while searching.
    """

    library: str = "faiss"
    m: int = 32
    ef_construction: int = 200
    ef: int = 500

    def __post_init__(self) -> None:
        """Raise `InvalidConfig` for parameters that no library can build."""
        if self.library not in LIBRARIES:
            raise InvalidConfig(
                f"index library {self.library!r} is unknown; choose one of {', '.join(LIBRARIES)}",
                field="library",
            )
        for field, low, high in (
            ("m", 4, 256),
            ("ef_construction", SMALLEST_EF, LARGEST_EF),
            ("ef", SMALLEST_EF, LARGEST_EF),
        ):
            if not low <= getattr(self, field) <= high:
                raise InvalidConfig(f"{field} must lie in {low}..{high}", field=field)


class SegmentLibrary(Protocol):
    """The functions that a library's module must have."""

    def build(
        self, vectors: Halves, parameters: IndexParameters, path: Path, progress: Progress
    ) -> None:
        """Build the graph over vectors [R, d] on all cores and write it to `path`."""
        ...

    def open(self, path: Path, *, rows: int, dimension: int) -> Segment:
        """Open a written graph for searching, memory-mapped if the library can do that.

        Raises `BundleAltered` for a file that is damaged or does not hold `rows` vectors of
        `dimension`.
        """
        ...


def load_library(name: str) -> SegmentLibrary:
    """Import an index library's module by its name in `LIBRARIES`.

    Raises `BundleUnsupported` for an unknown name, and `MissingExtra` if the library's package is
    not installed.
    """
    if name not in LIBRARIES:
        raise BundleUnsupported(
            f"index library {name!r} is unknown to this version; known: {', '.join(LIBRARIES)}"
        )
    return cast(SegmentLibrary, import_module(LIBRARIES[name]))
