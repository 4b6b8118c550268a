"""A sentence-transformers model as one torch module with two tensors as inputs.

Training and export both use it, so the exported modules are those that were trained.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PooledEncoder(nn.Module):  # type: ignore[misc]
    """All modules of the model (transformer, pooling, n-grams), then L2 normalisation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Unit vectors [n, d] of token ids [n, t]."""
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        pooled = self.model(features)["sentence_embedding"]  # [n, d]
        return torch.nn.functional.normalize(pooled, dim=-1)
