"""Settings of batches: the tables `[batch]` and `[refresh]` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BatchSettings:
    """How a batch is put together.

    `instances` are those of the global batch, whatever the number of processes. `positives` are
    drawn for each, `hard_negatives` (m of RAE-XMC) from those that were mined. `pool` is what the
    batch's instances are contrasted with: its own labels, or `all`.
    """

    instances: Annotated[int, Field(ge=2)] = 1024
    positives: Count = 1
    hard_negatives: Natural = 0
    pool: Literal["batch", "all"] = "batch"
    order: Literal["shuffled", "clustered"] = "shuffled"
    cluster_size: Annotated[int, Field(ge=2)] = 32  # instances; only where order is clustered


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RefreshSettings:
    """Every `every` steps from `first` on (0: never), all texts are encoded anew.

    `top` (hnm_topk) nearest labels of each row that are not its positives are kept as hard
    negatives, found by the index `library` or an exact scan.
    """

    every: Natural = 0
    first: Natural = 0
    top: Count = 50
    library: Literal["exact", "faiss", "hnswlib"] = "exact"
