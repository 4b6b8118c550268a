"""The table of index libraries, and the parameters with which they build a graph.

To add a library, write one module with the functions of `GraphLibrary` and add one line to
`LIBRARIES`. faiss is the default: it builds and searches faster than hnswlib over the same keys.
faiss-sq4 searches the same graph in half the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from service.core.errors import BundleUnsupported, InvalidConfig
from service.core.index.protocol import Graph, Progress
from service.core.types import Halves, Rows

LIBRARIES = {
    "faiss": "service.core.index.faiss_hnsw",
    "faiss-sq4": "service.core.index.faiss_sq4",
    "hnswlib": "service.core.index.hnswlib_hnsw",
}


SMALLEST_M, LARGEST_M = 4, 256
SMALLEST_EF, LARGEST_EF = 8, 4096


@dataclass(frozen=True, kw_only=True)
class IndexParameters:
    """Parameters of a graph and its search (RAE-XMC, Appendix A.3, uses M=64, 500 and 300).

    `m` is the number of edges per node. `ef_construction` and `ef` are the queue lengths while
    building and while searching. `recall_goal` is the share of the truly nearest keys that a search
    should find. A graph that misses it is searched with a longer queue.
    """

    library: str = "faiss"
    m: int = 32
    ef_construction: int = 200
    ef: int = 500
    recall_goal: float = 0.99

    def __post_init__(self) -> None:
        """Raise `InvalidConfig` for parameters that no library can build."""
        if self.library not in LIBRARIES:
            raise InvalidConfig(
                f"index library {self.library!r} is unknown; choose one of {', '.join(LIBRARIES)}",
                field="library",
            )
        for field, low, high in (
            ("m", SMALLEST_M, LARGEST_M),
            ("ef_construction", SMALLEST_EF, LARGEST_EF),
            ("ef", SMALLEST_EF, LARGEST_EF),
        ):
            if not low <= getattr(self, field) <= high:
                raise InvalidConfig(f"{field} must lie in {low}..{high}", field=field)
        if not 0 < self.recall_goal <= 1:
            raise InvalidConfig("recall_goal must be above 0 and at most 1", field="recall_goal")


class GraphLibrary(Protocol):
    """The functions that a library's module must have."""

    def builder(self) -> str:
        """Name what decides the bits of a built graph, such as "faiss 1.15.1 AVX2".

        Equal builders build equal files from equal vectors, with any number of threads.
        """
        ...

    def build(
        self,
        vectors: Halves,
        nodes: Rows,
        parameters: IndexParameters,
        path: Path,
        progress: Progress,
    ) -> None:
        """Build the graph over distinct vectors [R, d] and write it to `path`.

        `nodes` [R], ascending, are the row numbers that name the nodes.
        """
        ...

    def open(self, path: Path, *, nodes: Rows, dimension: int) -> Graph:
        """Open a written graph for searching, memory-mapped if the library supports that.

        Raises `BundleAltered` if the file is damaged or does not hold a vector of `dimension` for
        each of `nodes`, ascending.
        """
        ...


def load_library(name: str) -> GraphLibrary:
    """Import an index library's module by its name in `LIBRARIES`.

    Raises `BundleUnsupported` for an unknown name, and `MissingExtra` if the library's package is
    not installed.
    """
    if name not in LIBRARIES:
        raise BundleUnsupported(
            f"index library {name!r} is unknown to this version; known: {', '.join(LIBRARIES)}"
        )
    return cast(GraphLibrary, import_module(LIBRARIES[name]))
