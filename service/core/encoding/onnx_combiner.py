"""IRENE's combiner as an ONNX graph: C(u) from a text's vector and associated classifiers.

Shapes: n novel labels, m associated labels, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.core.encoding.onnx_session import open_session
from service.core.types import Bools, Floats


class OnnxCombiner:
    """The graph `combiner.onnx`, run on one thread per call."""

    def __init__(self, path: Path) -> None:
        """Load the graph; raises `BundleAltered` if the file is not an ONNX graph."""
        self._session = open_session(path)

    def __call__(self, texts: Floats, classifiers: Floats, present: Bools) -> Floats:
        """Return unit vectors C(u) [n, d].

        Takes text vectors [n, d], classifiers [n, m, d], and which of them are present [n, m].
        """
        inputs = {
            "texts": np.ascontiguousarray(texts, np.float32),
            "classifiers": np.ascontiguousarray(classifiers, np.float32),
            "present": np.ascontiguousarray(present, bool),
        }
        vectors: Floats = self._session.run(None, inputs)[0]
        return vectors
