"""The fusion of queries with items as an ONNX graph.

Shapes: n queries, m items of each, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.core.encoding.onnx_session import open_session
from service.core.types import Bools, Floats


class OnnxFusion:
    """The graph `fusion.onnx`, run on one thread per call."""

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
