"""Z as a checkpoint's own, where a system does not take the labels' text vectors.

One-versus-all classifiers stand in the labels' place, and so does IRENE's combiner. No torch is
needed to read them.

Shapes: L labels, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.core.errors import InvalidData
from service.core.types import Floats

LABEL_KEYS = "label_keys.npy"


def read_label_keys(folder: Path, *, labels: int) -> Floats | None:
    """A checkpoint's own Z, [L, d]; None where it is the labels' text vectors.

    Raises `InvalidData` for a file that is not of `labels` rows.
    """
    path = folder / LABEL_KEYS
    if not path.is_file():
        return None
    try:
        keys = np.load(path)
    except ValueError as error:
        raise InvalidData(path, f"cannot be read: {error}") from error
    if keys.ndim != 2 or len(keys) != labels:
        raise InvalidData(path, f"has shape {list(keys.shape)}; the data set has {labels} labels")
    found: Floats = keys.astype(np.float32)
    return found
