"""The label keys Z of a checkpoint whose system replaces the labels' text vectors.

One-versus-all replaces them by classifiers, IRENE by combined vectors. Reading them needs no torch.

Shapes: L labels, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.core.errors import InvalidData
from service.core.types import Floats

LABEL_KEYS = "label_keys.npy"


def read_label_keys(folder: Path, *, labels: int) -> Floats | None:
    """Return Z [L, d] of a checkpoint, None if its keys are the labels' text vectors.

    Raises `InvalidData` for a file without exactly `labels` rows.
    """
    path = folder / LABEL_KEYS
    if not path.is_file():
        return None
    try:
        keys = np.load(path)
    except ValueError as error:
        raise InvalidData(path, f"cannot be read: {error}") from error
    if keys.ndim != 2 or len(keys) != labels:
        message = f"has shape {list(keys.shape)}, but the data set has {labels} labels"
        raise InvalidData(path, message)
    vectors: Floats = keys.astype(np.float32)
    return vectors
