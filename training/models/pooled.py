"""A sentence-transformers model as one torch module with two tensors as inputs.

Training and export both use it, so the exported modules are those that were trained.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.models.ngrams import SENTENCE_EMBEDDING, CharacterNgrams
from training.models.two_heads import TwoHeads


class PooledEncoder(nn.Module):  # type: ignore[misc]
    """All modules of the model (transformer, pooling, n-grams), then L2 normalisation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Unit vectors [n, d] of token ids [n, t]."""
        return pooled(self.model, {"input_ids": input_ids, "attention_mask": attention_mask})


def pooled(modules: nn.Module, features: Mapping[str, Tensor]) -> Tensor:
    """Unit vectors [n, d] by modules of a model from its inputs, or from what precedes them."""
    vectors = modules(dict(features))[SENTENCE_EMBEDDING]  # [n, d]
    return torch.nn.functional.normalize(vectors, dim=-1)


def split_at_additions(model: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """The transformer with its pooling, and what Keymatch adds: n-grams and heads, None without.

    Additions normalise what they read, so unit vectors may stand between the two.
    """
    modules = list(model)
    first = next(
        (
            place
            for place, part in enumerate(modules)
            if isinstance(part, CharacterNgrams | TwoHeads)
        ),
        len(modules),
    )
    if first == len(modules):
        return nn.Sequential(*modules), None
    return nn.Sequential(*modules[:first]), nn.Sequential(*modules[first:])
