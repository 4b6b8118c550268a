"""The fusion of a query with items: OAK's one cross-attention layer (MOGIC, Section 3).

Shapes: n queries, m items of each, d dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from service.core.encoding.onnx_session import open_session
from service.core.types import Bools, Floats


class Fusion(Protocol):
    """A fusion of queries with items."""

    def fuse(self, queries: Floats, items: Floats, mask: Bools) -> Floats:
        """Return unit vectors [n, d] of queries [n, d] that attend to items [n, m, d].

        An item counts where `mask` [n, m] is true. A query without items stays what it is.
        """


class OnnxFusion:
    """The fusion as a bundle has it: the graph `fusion.onnx`, run on one thread per call."""

    def __init__(self, path: Path) -> None:
        """Load the graph; raises `BundleAltered` if the file is not an ONNX graph."""
        self._session = open_session(path)

    def fuse(self, queries: Floats, items: Floats, mask: Bools) -> Floats:
        """Return fused unit vectors [n, d] of queries [n, d], items [n, m, d] and a mask [n, m]."""
        inputs = {
            "query": np.ascontiguousarray(queries, np.float32),
            "items": np.ascontiguousarray(items, np.float32),
            "mask": np.ascontiguousarray(mask, bool),
        }
        vectors: Floats = self._session.run(["fused"], inputs)[0]
        return vectors
