"""OAK's combiner: one cross-attention layer from a query to its metadata (MOGIC, section 3).

    h = x + W_o concat_h( softmax(c <W_q x, W_k a>) W_v a ),    q = normalize(h + FFN(h))

W_q, W_k and W_v start as the identity, W_o and the last layer of the feed-forward network as zero:
before the first step a query's vector is not changed, so training starts from what the encoder
knows. A query without items keeps its vector for good.

Shapes: n queries, m items of a query, d dimensions, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize

_SCALE = 10.0  # c at the start: unit vectors have inner products of at most 1
_NEVER = -1e9  # -inf would give nan where a query has no items


class Fusion(nn.Module):  # type: ignore[misc]
    """The cross-attention layer; its forward pass is what is exported and served."""

    def __init__(self, dimension: int, *, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(dimension, dimension, bias=False) for _ in range(4)
        )
        self.scale = nn.Parameter(torch.tensor(_SCALE))
        self.widen, self.narrow = nn.Linear(dimension, hidden), nn.Linear(hidden, dimension)
        with torch.no_grad():
            for linear in (self.query, self.key, self.value):
                linear.weight.copy_(torch.eye(dimension))
            for zero in (self.out.weight, self.narrow.weight, self.narrow.bias):
                zero.zero_()

    def forward(self, query: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """Unit vectors [n, d] from queries [n, d], their items [n, m, d], and which there are."""
        shares = self.attention(query, items, mask)  # [n, H, m]
        values = self._by_head(self.value(items))  # [n, H, m, d / H]
        read = (shares[..., None] * values).sum(dim=2).flatten(1)  # [n, d]
        mixed = query + self.out(read)
        mixed = normalize(mixed + self.narrow(gelu(self.widen(mixed))), dim=-1)
        return torch.where(mask.any(dim=1, keepdim=True), mixed, query)

    def attention(self, query: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """How much of each item a head reads, [n, H, m]; they sum to 1 over the items."""
        keys = self._by_head(self.key(items))  # [n, H, m, d / H]
        queries = self.query(query).unflatten(-1, (self.heads, -1))[:, :, None]  # [n, H, 1, d / H]
        logits = self.scale * self.heads * (queries * keys).sum(dim=-1)
        return torch.softmax(logits.masked_fill(~mask[:, None], _NEVER), dim=-1)

    def _by_head(self, vectors: Tensor) -> Tensor:
        return vectors.unflatten(-1, (self.heads, -1)).transpose(1, 2)
