"""The fusion of queries with the items that are nearest to them, or that a client names.

Shapes: n queries, m items of each, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.items.fusion import Fusion
from service.core.items.item_memory import ItemMemory
from service.core.types import Floats, FusedItem, Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedQueries:
    """Fused vectors [n, d]; places and similarities [m] of the items that each query attended.

    `given` says that the items were named, not predicted. Without an item memory there are neither
    places nor similarities.
    """

    vectors: Floats
    places: tuple[Rows, ...] = ()
    similarities: tuple[Floats, ...] = ()
    given: bool = False

    def items(self, memory: ItemMemory) -> list[tuple[FusedItem, ...]]:
        """Return the items [n] of each query; `memory` is the one that they were found in."""
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


def fused(
    memory: ItemMemory, fusion: Fusion, vectors: Floats, given: Sequence[Rows] | None = None
) -> FusedQueries:
    """Fuse the vectors [n, d] with the items that are nearest to them.

    `given` has the places of each query's items, any number, in place of the nearest. The graph
    runs for one query at a time, so that other queries of a request do not change a query's bits.
    """
    rows, places, similarities = [], [], []
    for number, vector in enumerate(vectors):
        near, at = (
            _predicted(memory, vector)
            if given is None
            else _named(memory, vector, np.asarray(given[number], np.int64))
        )
        rows.append(fusion.fuse(vector, memory.projected(at)))
        places.append(at)
        similarities.append(near)
    return FusedQueries(
        vectors=np.stack(rows) if rows else vectors,
        places=tuple(places),
        similarities=tuple(similarities),
        given=given is not None,
    )


def _predicted(memory: ItemMemory, vector: Floats) -> tuple[Floats, Rows]:
    return memory.nearest_of_one(vector[None], memory.attended)


def _named(memory: ItemMemory, vector: Floats, places: Rows) -> tuple[Floats, Rows]:
    keys = memory.keys(places).astype(np.float32)
    return np.asarray(keys @ vector, np.float32), places
