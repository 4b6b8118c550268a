"""The combiner's graph: C(u) from a text's vector and the classifiers of associated labels.

Shapes: n novel labels, m associated labels, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.core.encoding.encoder import open_session
from service.core.types import Bools, Floats


class OnnxCombiner:
    """`combiner.onnx`, on one thread a call."""

    def __init__(self, path: Path) -> None:
        """Load the graph; raises `BundleAltered` where it is none."""
        self._session = open_session(path)

    def __call__(self, texts: Floats, classifiers: Floats, present: Bools) -> Floats:
        """Unit vectors [n, d] of texts [n, d], classifiers [n, m, d] and which are there [n, m]."""
        inputs = {
            "texts": np.ascontiguousarray(texts, np.float32),
            "classifiers": np.ascontiguousarray(classifiers, np.float32),
            "present": np.ascontiguousarray(present, bool),
        }
        vectors: Floats = self._session.run(None, inputs)[0]
        return vectors
