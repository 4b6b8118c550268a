"""OAK's parameters: fusion, memory bank, and the free vectors of the labels.

Shapes: N training rows, M items, m items of a query, K clusters of labels, d dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from service.core.types import Floats, Rows
from training.datasets.metadata_links import NO_ITEM
from training.models.sharding import Sharding
from training.systems.dexa import AuxiliaryVectors
from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import ItemVectors


class OakHead(AuxiliaryVectors):
    """The label's vectors of DEXA, with the fusion and what the bank adds to the items' texts.

    `attended` are the items of each training row as of the last lookup. They belong to the state of
    a run: a resumed run goes on with the same items.
    """

    def __init__(
        self, clusters: Rows, fusion: Fusion, attended: Rows, *, items: int, sharding: Sharding
    ) -> None:
        dimension = fusion.out.out_features
        super().__init__(clusters, dimension=dimension, sharding=sharding)
        self.fusion = fusion
        self.residuals = nn.Parameter(torch.zeros(items, dimension))  # [M, d]
        self.register_buffer("attended", torch.from_numpy(attended))  # [N, m]

    def items_of(self, rows: Tensor) -> Tensor:
        """The numbers of the items that any of the training rows [B] attends to, ascending."""
        attended = self.attended[rows]
        return torch.unique(attended[attended != NO_ITEM])

    def fused(self, instances: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """The instances [B, d] of training rows [B], fused with their items.

        `items` are the vectors of the texts of `items_of(rows)`.
        """
        attended = self.attended[rows]  # [B, m]
        numbers = self.items_of(rows)
        if not len(numbers):
            return instances
        bank = items + self.residuals[numbers]
        places = torch.searchsorted(numbers, attended.clamp(min=0)).clamp(max=len(numbers) - 1)
        fused: Tensor = self.fusion(instances, bank[places], attended != NO_ITEM)
        return fused

    def memory(self, items: Floats) -> ItemVectors:
        """The item memory, from the present vectors of the items' texts [M, d]."""
        return ItemVectors(
            keys=items,
            values=items + self.residuals.detach().cpu().numpy(),
            attended=self.attended.shape[1],
            fusion=self.fusion,
        )
