"""Training with a frozen transformer: it encodes each text once, before the first step.

Only n-grams, heads and the system's parameters are trained then. A run takes minutes of a processor
in place of an hour. NGAME's second stage is such a run.

Shapes: n texts of the table, d dimensions.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from service.core.types import Rows
from training.loop.embedder import Embedder, Inputs
from training.models.ngrams import SENTENCE_EMBEDDING
from training.models.tokens import TokenTable
from training.models.vector_cache import VectorCache


class FrozenEncoder(nn.Module):  # type: ignore[misc]
    """A `BucketedEncoder` without the transformer, whose vectors each bucket brings along."""

    def __init__(self, added: nn.Sequential) -> None:
        super().__init__()
        self.added = added  # n-grams and heads; nothing where all is frozen

    def forward(self, inputs: Inputs) -> Tensor:
        """Vectors [k, d] in float32, the buckets one after the other."""
        vectors = [self.added(bucket)[SENTENCE_EMBEDDING] for bucket in inputs]
        return torch.cat(vectors).float()


class FrozenEmbedder(Embedder):
    """An embedder that encodes the whole table with `transformer` once and keeps the vectors.

    With a `cache`, texts that an earlier run encoded are not encoded again.
    """

    def __init__(
        self,
        added: nn.Sequential,
        transformer: Embedder,
        *,
        cache: VectorCache | None = None,
        **options: Any,
    ) -> None:
        super().__init__(FrozenEncoder(added), **options)
        self._transformer, self._cache = transformer, cache

    def over(self, table: TokenTable) -> Self:
        """The same encoder over other texts, which are encoded once, too."""
        other = super().over(table)
        other._transformer = self._transformer.over(table)
        other.__dict__.pop("transformer_vectors", None)  # those of the first texts
        return other

    @cached_property
    def transformer_vectors(self) -> Tensor:
        """The transformer's vectors [n, d]."""
        encode = self._transformer.vectors
        if self._cache is None:
            return torch.from_numpy(encode(np.arange(len(self.table))))
        return torch.from_numpy(self._cache.vectors(self.table, encode))

    def _bucket(self, texts: Rows) -> dict[str, Tensor]:
        inputs = super()._bucket(texts)
        vectors = self.transformer_vectors[torch.from_numpy(texts)]
        return {**inputs, SENTENCE_EMBEDDING: vectors.to(inputs["input_ids"].device)}
