"""The fusion of a query with items: OAK's one cross-attention layer (MOGIC, Section 3).

What a query reads of an item does not depend on the query, so it is computed only once: when the
item is written. A query is fused with its nearest items, or with those that a client names.

Shapes: n queries, m items per query, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from service.core.bundle.item_files import FUSE, PROJECT
from service.core.encoding.onnx_session import open_session
from service.core.errors import InvalidInput, echoed
from service.core.types import Floats, FusedItem, Halves, Rows

if TYPE_CHECKING:
    from service.core.items.item_memory import ItemMemory


class OnnxFusion:
    """The fusion of a bundle: two graphs. Each call runs on one thread."""

    def __init__(self, folder: Path) -> None:
        """Load the graphs; raises `BundleAltered` if a file is not an ONNX graph."""
        self._project = open_session(folder / PROJECT)
        self._fuse = open_session(folder / FUSE)

    def project(self, values: Halves) -> Halves:
        """Return what queries read of items [m, 2, d] (key and value), given their values [m, d].

        Each item is projected alone, so other items do not change its bits.
        """
        projected = np.empty((len(values), 2, values.shape[1]), np.float16)
        for row, value in enumerate(values.astype(np.float32)):
            projected[row] = self._project.run(["projected"], {"values": value[None]})[0][0]
        return projected

    def fuse(self, query: Floats, projected: Halves) -> Floats:
        """Return the unit vector [d] of a query [d] that attends to projected items [m, 2, d].

        Without items, the query is returned unchanged.
        """
        if not len(projected):
            return query
        inputs = {"query": query[None], "items": projected.astype(np.float32)}
        fused: Floats = self._fuse.run(["fused"], inputs)[0][0]
        return fused


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedQueries:
    """Fused vectors [n, d], with the places and similarities [m] of each query's items.

    `given` says that the request named the items. Without an item memory there are neither places
    nor similarities.
    """

    vectors: Floats
    places: tuple[Rows, ...] = ()
    similarities: tuple[Floats, ...] = ()
    given: bool = False

    def items(self, memory: ItemMemory) -> list[tuple[FusedItem, ...]]:
        """Return the items [n] of each query; `memory` must be the one in which they were found."""
        return [
            tuple(
                FusedItem(
                    id=memory.id_at(place),
                    text=memory.text_at(place),
                    similarity=similarity,
                    given=self.given,
                )
                for place, similarity in zip(places.tolist(), near.tolist(), strict=True)
            )
            for places, near in zip(self.places, self.similarities, strict=True)
        ]


def fused(memory: ItemMemory, vectors: Floats, given: Sequence[Rows] | None = None) -> FusedQueries:
    """Fuse queries' vectors [n, d] with their nearest items, or with the items at places `given`.

    The graph runs for one query at a time, so other queries do not change its bits.
    """
    rows, places, similarities = [], [], []
    for number, vector in enumerate(vectors):
        if given is None:
            near, at = memory.nearest(vector[None], memory.attended)
        else:
            at = np.asarray(given[number], np.int64)
            near = np.asarray(memory.keys(at).astype(np.float32) @ vector, np.float32)
        rows.append(memory.base.fusion.fuse(vector, memory.projected(at)))
        places.append(at)
        similarities.append(near)
    return FusedQueries(
        vectors=np.stack(rows) if rows else vectors,
        places=tuple(places),
        similarities=tuple(similarities),
        given=given is not None,
    )


def places_of(memory: ItemMemory, names: Sequence[str]) -> Rows:
    """Return the places [m] of the items with these ids or texts, each place once.

    A name is first looked up as an id. Raises `InvalidInput` for a name that no item has.
    """
    places: dict[int, None] = {}
    for number, name in enumerate(names):
        place = memory.find(name)
        place = memory.find_text(name) if place is None else place
        if place is None:
            raise InvalidInput(
                f"no item has the id or text {echoed(name)}", field=f"items.{number}"
            )
        places[place] = None
    return np.array(list(places), np.int64)
