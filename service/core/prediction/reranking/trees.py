"""The trees of a bundle as an ONNX graph.

Shapes: k candidates, F features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from service.core.encoding.onnx_session import open_session
from service.core.errors import BundleAltered
from service.core.types import Doubles, Floats

INPUT, OUTPUT = "features", "scores"


class Trees(Protocol):
    """An ensemble of regression trees."""

    def scores(self, features: Floats) -> Doubles:
        """The sum of all trees for each candidate [k] of features [k, F]."""
        ...


class OnnxTrees:
    """One `TreeEnsembleRegressor`, run on one thread per call."""

    def __init__(self, path: Path, *, features: int) -> None:
        """Load the graph; raises `BundleAltered` if it is none, or reads other features."""
        self._session = open_session(path)
        shapes = {one.name: one.shape for one in self._session.get_inputs()}
        if INPUT not in shapes or shapes[INPUT][-1] != features:
            raise BundleAltered(f"{path} does not read {INPUT} [k, {features}], but {shapes}")

    def scores(self, features: Floats) -> Doubles:
        """The sum of all trees for each candidate [k] of features [k, F]."""
        found = self._session.run([OUTPUT], {INPUT: features})[0]
        return np.asarray(found, np.float64).ravel()
