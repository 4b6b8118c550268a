"""A sentence-transformers model as one torch module with two tensors as inputs.

Training and export both use it, so exactly the trained modules are exported.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.models.ngrams import SENTENCE_EMBEDDING, CharacterNgrams
from training.models.two_heads import TwoHeads


class PooledEncoder(nn.Module):  # type: ignore[misc]
    """All modules of the model (transformer, pooling, n-grams), then L2 normalization."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Unit vectors [n, d] of token ids [n, t]."""
        return pooled(self.model, {"input_ids": input_ids, "attention_mask": attention_mask})


def pooled(modules: nn.Module, features: Mapping[str, Tensor]) -> Tensor:
    """Return the unit vectors [n, d] that a model's modules compute from their input features."""
    vectors = modules(dict(features))[SENTENCE_EMBEDDING]  # [n, d]
    return torch.nn.functional.normalize(vectors, dim=-1)


def split_at_additions(model: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """Split a model into transformer with pooling, and Keymatch's n-grams and heads, if any.

    The second part normalizes its inputs, so the first part's vectors may be normalized before.
    """
    modules = list(model)
    is_ours = [isinstance(part, CharacterNgrams | TwoHeads) for part in modules]
    if not any(is_ours):
        return nn.Sequential(*modules), None
    first = is_ours.index(True)
    return nn.Sequential(*modules[:first]), nn.Sequential(*modules[first:])
