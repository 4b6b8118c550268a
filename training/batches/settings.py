"""Settings of batches: the tables `[batch]` and `[refresh]` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BatchSettings:
    """How a batch is put together.

    `instances` counts those of the global batch, whatever the number of processes. For each of them
    `positives` labels are sampled, all alike or, `weighted`, in proportion to their relevance, and
    `hard_negatives` (m of RAE-XMC) of those mined. `pool` is what instances are contrasted with:
    the labels sampled for the batch, or all labels.
    """

    instances: Annotated[int, Field(ge=2)] = 1024
    positives: Count = 1
    sampling: Literal["uniform", "weighted"] = "uniform"
    hard_negatives: Natural = 0
    pool: Literal["batch", "all"] = "batch"
    order: Literal["shuffled", "clustered"] = "shuffled"
    cluster_size: Annotated[int, Field(ge=2)] = 32  # instances; only where order is clustered


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RefreshSettings:
    """When all texts are encoded again, for new hard negatives and clusters.

    That is from step `first` on every `every` steps (0 is never), or every `every_epochs` epochs,
    which fits data of any size. Hard negatives of a row are the `top` (hnm_topk) labels nearest to
    it that are not its positives, searched with the index `library` or by an exact scan.
    """

    every: Natural = 0
    every_epochs: Positive | None = None
    first: Natural = 0
    top: Count = 50
    library: Literal["exact", "faiss", "hnswlib"] = "exact"

    @model_validator(mode="after")
    def _has_one_distance(self) -> Self:
        if self.every and self.every_epochs is not None:
            raise ValueError("give either every or every_epochs")
        return self

    @property
    def recurs(self) -> bool:
        """Whether there is a refresh at `first` and after it."""
        return self.every > 0 or self.every_epochs is not None
