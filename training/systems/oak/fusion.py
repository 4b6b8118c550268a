"""OAK's combiner: one cross-attention layer from a query to its metadata (MOGIC, section 3).

    h = x + W_o concat_h( softmax(c <W_q x, W_k a>) W_v a ),    q = normalize(h + FFN(h))

W_q, W_k and W_v start as the identity, W_o and the last layer of the feed-forward network as zero.
So a query's vector is unchanged at first, and training starts from what the encoder knows. A query
without items always keeps its vector.

Shapes: n queries, m items of a query, d dimensions, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

_SCALE = 10.0  # the initial c; unit vectors have inner products of at most 1
_SHORTEST = 1e-12  # shorter vectors are not normalized to unit vectors
_NEVER = -1e9  # -inf would give nan if a query has no items


class Fusion(nn.Module):  # type: ignore[misc]
    """The cross-attention layer; its forward pass is what is exported and served."""

    def __init__(self, dimension: int, *, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.width = heads, dimension // heads
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
        """Fuse queries [n, d] with those of their items [n, m, d] that `mask` [n, m] marks."""
        return self.read(query, self.project(items), mask)

    def project(self, items: Tensor) -> Tensor:
        """Project items [..., d] to [..., 2, d]: W_k a, scaled for the logits, and W_v a.

        The result does not depend on the query, so the service keeps it for each item.
        """
        return torch.stack([self.scale * self.heads * self.key(items), self.value(items)], dim=-2)

    def read(self, query: Tensor, projected: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return unit vectors [n, d]: queries [n, d] fused with projected items [n, m, 2, d].

        `mask` [n, m] marks the items of each query. Without it all m count, and m is at least 1.
        """
        keys, values = self._by_head(projected)
        shares = self._shares(query, keys, mask)  # [n, H, m]
        read = (shares[..., None] * values).sum(dim=2).flatten(1)  # [n, d]
        mixed = query + self.out(read)
        mixed = mixed + self.narrow(gelu(self.widen(mixed)))
        # Like torch's `normalize`, which would add operators for its shape to the exported graph.
        mixed = mixed / mixed.norm(dim=-1, keepdim=True).clamp_min(_SHORTEST)
        return mixed if mask is None else torch.where(mask.any(dim=1, keepdim=True), mixed, query)

    def _shares(self, query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Return how much each head reads of each item, [n, H, m]; the sum over items is 1."""
        queries = self.query(query).reshape(len(query), self.heads, 1, self.width)
        logits = (queries * keys).sum(dim=-1)  # [n, H, m]
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], _NEVER)
        return torch.softmax(logits, dim=-1)

    def _by_head(self, projected: Tensor) -> Tensor:
        """Return keys and values [2, n, H, m, d / H] of projected items [n, m, 2, d]."""
        heads = projected.reshape(len(projected), -1, 2, self.heads, self.width)
        return heads.permute(2, 0, 3, 1, 4)
