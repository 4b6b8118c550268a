"""What an exported encoder holds of OAK's item memory, without torch.

| file                  | content                                                          |
|-----------------------|------------------------------------------------------------------|
| `items/project.onnx`  | the graph: values of items -> what queries read of them          |
| `items/fuse.onnx`     | the graph: a query and its projected items -> the fused query    |
| `items/residuals.npy` | fp16 [M, d]: the bank's vectors less those of the items' texts   |

Keys and bank follow from the texts of the data set's metadata items by the exported encoder.
"""

from __future__ import annotations

import hashlib

from pydantic.dataclasses import dataclass

from service.core.config import STRICT
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import require_metadata

FUSION, RESIDUALS = "items", "items/residuals.npy"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ItemMemoryFacts:
    """How many items there are, and how many of them a query attends to.

    `digest` is the SHA-256 of the items' ids and texts: the residuals fit no other items. `format`
    is that of a bundle's items, whose graphs these are; version 1 is not named.
    """

    items: int
    attended: int
    digest: str
    format: int = 1


def digest_of_items(dataset: Dataset) -> str:
    """The SHA-256 over ids and texts of a data set's metadata items, in order.

    Raises `InvalidInput` for a data set without metadata.
    """
    items = require_metadata(dataset, reader="the encoder looks up")
    parts = (*items.uids, *items.texts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
