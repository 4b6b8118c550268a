"""A transformer that does not learn: its vectors are made once, and what stands beside it learns.

A step is then as cheap as the n-grams' table or a system's own parameters: a minute of a processor
in place of an hour. NGAME's second stage is such a run, too.

Shapes: n texts of the table, d dimensions.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from service.core.types import Rows
from training.loop.embedder import Embedder, Inputs
from training.models.ngrams import MEANT, CharacterNgrams


class FrozenEncoder(nn.Module):  # type: ignore[misc]
    """In the place of `BucketedEncoder`, where each bucket brings the transformer's vectors."""

    def __init__(self, ngrams: CharacterNgrams | None) -> None:
        super().__init__()
        self.ngrams = ngrams

    def forward(self, inputs: Inputs) -> Tensor:
        """Unit vectors [k, d] in float32, the buckets one after the other."""
        found = inputs if self.ngrams is None else [self.ngrams(bucket) for bucket in inputs]
        return torch.cat([bucket[MEANT] for bucket in found])


class FrozenEmbedder(Embedder):
    """An embedder that asks `transformer` for its vectors of the whole table, once."""

    def __init__(
        self, ngrams: CharacterNgrams | None, transformer: Embedder, **others: Any
    ) -> None:
        super().__init__(FrozenEncoder(ngrams), **others)
        self._transformer = transformer

    @cached_property
    def known(self) -> Tensor:
        """The transformer's vectors [n, d]."""
        return torch.from_numpy(self._transformer.vectors(np.arange(len(self.table))))

    def _bucket(self, texts: Rows) -> dict[str, Tensor]:
        inputs = super()._bucket(texts)
        known = self.known[torch.from_numpy(texts)]
        return {**inputs, MEANT: known.to(inputs["input_ids"].device)}
