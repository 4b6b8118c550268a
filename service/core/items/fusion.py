"""The fusion of a query with items: OAK's one cross-attention layer (MOGIC, Section 3).

What a query reads of an item does not depend on the query. So it is computed once, when the item is
written, and a query's own graph does without the weights for it: they are a third of the layer's.

Shapes: m items, d dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from service.core.bundle.item_files import FUSE, PROJECT
from service.core.encoding.onnx_session import open_session
from service.core.types import Floats, Halves


class Fusion(Protocol):
    """A fusion of queries with items."""

    def project(self, values: Halves) -> Halves:
        """Return what queries read of items [m, 2, d], key and value, from their values [m, d].

        Each item is projected alone, so that others do not change its bits.
        """

    def fuse(self, query: Floats, projected: Halves) -> Floats:
        """Return the unit vector [d] of a query [d] that attends to projected items [m, 2, d].

        A query without items stays what it is.
        """


class OnnxFusion:
    """The fusion as a bundle has it: two graphs, each run on one thread per call."""

    def __init__(self, folder: Path) -> None:
        """Load the graphs; raises `BundleAltered` if a file is not an ONNX graph."""
        self._project = open_session(folder / PROJECT)
        self._fuse = open_session(folder / FUSE)

    def project(self, values: Halves) -> Halves:
        """Return what queries read of items, [m, 2, d] in fp16, from their values [m, d]."""
        projected = np.empty((len(values), 2, values.shape[1]), np.float16)
        for row, value in enumerate(values.astype(np.float32)):
            projected[row] = _result(self._project, "projected", values=value[None])[0]
        return projected

    def fuse(self, query: Floats, projected: Halves) -> Floats:
        """Return the unit vector [d] of a query [d] and projected items [m, 2, d]."""
        if not len(projected):
            return query
        items = projected.astype(np.float32)
        fused: Floats = _result(self._fuse, "fused", query=query[None], items=items)[0]
        return fused


def _result(session: Any, output: str, **inputs: Floats) -> Floats:
    """Run a graph; `inputs` are contiguous."""
    result: Floats = session.run([output], inputs)[0]
    return result
