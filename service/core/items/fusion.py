"""The fusion of a query with items: OAK's one cross-attention layer (MOGIC, Section 3).

Shapes: n queries, m items of each, d dimensions.
"""

from __future__ import annotations

from typing import Protocol

from service.core.types import Bools, Floats


class Fusion(Protocol):
    """A fusion of queries with items; `encoding.onnx_fusion` runs the one of a bundle."""

    def fuse(self, queries: Floats, items: Floats, mask: Bools) -> Floats:
        """Return unit vectors [n, d] of queries [n, d] that attend to items [n, m, d].

        An item counts where `mask` [n, m] is true. A query without items stays what it is.
        """
