"""What an exported encoder holds of OAK's item memory, without torch.

| file                  | content                                                          |
|-----------------------|------------------------------------------------------------------|
| `items/fusion.onnx`   | the graph: a query and its items -> the fused query              |
| `items/residuals.npy` | fp16 [M, d]: the bank's vectors less those of the items' texts   |

Keys and bank follow from the texts of the data set's metadata items by the exported encoder.
"""

from __future__ import annotations

import hashlib

from pydantic.dataclasses import dataclass

from service.core.config import STRICT
from service.core.errors import InvalidInput
from training.datasets.dataset import Dataset

FUSION, RESIDUALS = "items/fusion.onnx", "items/residuals.npy"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ItemMemoryFacts:
    """How many items there are, and how many of them a query attends to.

    `digest` is the SHA-256 of the items' ids and texts: the residuals fit no other items.
    """

    items: int
    attended: int
    digest: str


def digest_of_items(dataset: Dataset) -> str:
    """The SHA-256 over ids and texts of a data set's metadata items, in order.

    Raises `InvalidInput` for a data set without metadata.
    """
    if dataset.metadata is None:
        raise InvalidInput(
            f"the encoder looks up metadata items, and data set {dataset.name} has none"
            " (metadata.json.gz): give the data set that it was trained on"
        )
    parts = (*dataset.metadata.uids, *dataset.metadata.texts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
