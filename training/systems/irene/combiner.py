"""IRENE's combiner C(l): one vector from a label's text and its associated labels' classifiers.

    C(l) = Linear(SelfAttention([E(z_l) + t_enc, w_1 + t_clf, ..., w_m + t_clf]))     (section 4.1)

with learned type embeddings t. With `residual`, the result is added to E(z_l) before
normalization, so training starts from the text's vector. The combiners of Table 8's ablations
take the same inputs.

Shapes: n labels, m slots for associated labels, t = 1 + m tokens, d dimensions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

Kind = Literal["attention", "transformer", "sum", "weighted-sum", "max"]


class Combiner(nn.Module):  # type: ignore[misc]
    """The base class of all kinds of combiners; inputs and outputs are unit vectors."""

    def forward(self, texts: Tensor, classifiers: Tensor, present: Tensor) -> Tensor:
        """Return C [n, d] of texts [n, d] and those of classifiers [n, m, d] that are `present`."""
        return normalize(self.combine(texts, classifiers, present), dim=-1)

    def combine(self, texts: Tensor, classifiers: Tensor, present: Tensor) -> Tensor:
        """Return C before normalization, [n, d]."""
        raise NotImplementedError


class AttentionCombiner(Combiner):
    """The paper's combiner; `transformer` adds the feed-forward half of a transformer layer."""

    def __init__(
        self, dimension: int, *, heads: int, dropout: float, residual: bool, transformer: bool
    ) -> None:
        super().__init__()
        self.residual = residual
        self.types = nn.Parameter(0.02 * torch.randn(2, dimension))  # t_enc, t_clf
        self.attention = SelfAttention(dimension, heads=heads, dropout=dropout)
        self.feed_forward = FeedForward(dimension, dropout=dropout) if transformer else None
        self.linear = nn.Linear(dimension, dimension)
        if residual:
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    def combine(self, texts: Tensor, classifiers: Tensor, present: Tensor) -> Tensor:
        """Return Linear of the attended tokens' mean; with `residual`, plus the text's vector."""
        tokens = torch.cat([texts[:, None] + self.types[0], classifiers + self.types[1]], dim=1)
        text = torch.ones_like(present[:, :1])
        mask = torch.cat([text, present], dim=1)  # [n, 1 + m]
        attended = self.attention(tokens, mask)  # [n, 1 + m, d]
        if self.feed_forward is not None:
            attended = self.feed_forward(tokens + attended)
        weights = mask.to(attended.dtype)[..., None]
        pooled = (attended * weights).sum(dim=1) / weights.sum(dim=1)
        combined = self.linear(pooled)
        return texts + combined if self.residual else combined


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Multi-head self-attention over few tokens."""

    def __init__(self, dimension: int, *, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.inward = nn.Linear(dimension, 3 * dimension)
        self.outward = nn.Linear(dimension, dimension)

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        """Attend to tokens [n, t, d], except those not `present` [n, t]; return [n, t, d]."""
        n, t, d = tokens.shape
        split = self.inward(tokens).reshape(n, t, 3, self.heads, d // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)  # [n, heads, t, d/heads]
        attended = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=present[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.outward(attended.transpose(1, 2).reshape(n, t, d))


class FeedForward(nn.Module):  # type: ignore[misc]
    """The feed-forward half of a transformer layer, with layer norms before and after."""

    def __init__(self, dimension: int, *, dropout: float) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(dimension), nn.LayerNorm(dimension)
        self.wide = nn.Linear(dimension, 4 * dimension)
        self.narrow = nn.Linear(4 * dimension, dimension)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the layer's output [n, t, d] for tokens [n, t, d]."""
        tokens = self.before(tokens)
        wide = nn.functional.gelu(self.wide(tokens))
        return self.after(tokens + self.dropout(self.narrow(wide)))


class SumCombiner(Combiner):
    """Table 8's sum, or weighted sum with a learned weight for each slot."""

    def __init__(self, places: int, *, weighted: bool) -> None:
        super().__init__()
        ones = torch.ones(1 + places)
        self.weights = nn.Parameter(ones) if weighted else None

    def combine(self, texts: Tensor, classifiers: Tensor, present: Tensor) -> Tensor:
        """Return the (weighted) sum of text and present classifiers, [n, d]."""
        there = present.to(texts.dtype)[..., None]
        if self.weights is None:
            return texts + (there * classifiers).sum(dim=1)
        weighted = there * classifiers * self.weights[1:, None]
        return self.weights[0] * texts + weighted.sum(dim=1)


class MaxCombiner(Combiner):
    """Table 8's maximum in each dimension."""

    def combine(self, texts: Tensor, classifiers: Tensor, present: Tensor) -> Tensor:
        """Return the largest value in each dimension, [n, d]."""
        hidden = classifiers.masked_fill(~present[..., None], -torch.inf)
        return torch.cat([texts[:, None], hidden], dim=1).amax(dim=1)


def make_combiner(
    kind: Kind, dimension: int, *, places: int, heads: int, dropout: float, residual: bool
) -> Combiner:
    """Return an untrained combiner for `places` slots; `residual` matters only with attention."""
    if kind == "max":
        return MaxCombiner()
    if kind in ("sum", "weighted-sum"):
        return SumCombiner(places, weighted=kind == "weighted-sum")
    return AttentionCombiner(
        dimension,
        heads=heads,
        dropout=dropout,
        residual=residual,
        transformer=kind == "transformer",
    )
