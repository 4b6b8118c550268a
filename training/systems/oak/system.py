"""OAK (Mohan et al., ICML 2024) as MOGIC describes it: a query reads its predicted metadata.

    A(x) = the m items whose texts are most similar to E(x);  an item's bank vector is E(a) + r_a
    q(x) = Fusion(E(x), bank vectors of A(x)),    z^_l = normalize(E(z_l) + gamma e_c(l))

q replaces E(x) in the loss, in the memory's instance keys and in every query. The labels' auxiliary
vectors e are DEXA's, shared by small clusters. r starts at zero, so an item that is added later
works without training: its bank vector is that of its text. A label's key is never fused.

As in the paper there are two stages. The first one trains the encoder (`encoder.stage_one`, or
`--encoder`), the second one trains fusion, bank and label vectors on predicted items. In it the
encoder continues to learn, or is frozen (`encoder.frozen`).

Shapes: B instances, P labels of the pool, N training rows, L labels, M items, d dimensions.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from service.core.config import STRICT, Count, Positive
from service.core.errors import InvalidConfig
from service.core.types import Floats, Rows
from training.datasets.metadata_links import NO_ITEM, item_frequency, linked_items
from training.models.sharding import Sharding
from training.systems.dexa import AugmentedLabels, AuxiliaryVectors, clusters_of
from training.systems.finished import FinishedTraining
from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import ItemVectors, nearest_items, write_item_memory
from training.systems.system import EncodedBatch, ItemsOfTask, KeySettings, Task


class OakHead(AuxiliaryVectors):
    """DEXA's auxiliary label vectors, the fusion, and the residuals r of the items' bank vectors.

    `attended` has each training row's items as of the last look-up. It is part of a run's saved
    state, so a resumed run continues with the same items.
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
        """Return the numbers of the items that training rows [B] attend to, ascending."""
        attended = self.attended[rows]
        return torch.unique(attended[attended != NO_ITEM])

    def fused(self, instances: Tensor, rows: Tensor, items: Tensor) -> Tensor:
        """Return the instances [B, d] of training rows [B], fused with their items.

        `items` are the text vectors of `items_of(rows)`.
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
        """Return the item memory, given the current vectors of the items' texts [M, d]."""
        return ItemVectors(
            keys=items,
            values=items + self.residuals.detach().cpu().numpy(),
            attended=self.attended.shape[1],
            fusion=self.fusion,
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(KeySettings):
    """A query attends to `attended` items (2 to 5 in the paper), in `heads` heads.

    In training these are the items predicted for it, as in serving (`metadata = "predicted"`), or
    those that the data link it to (`"linked"`, setting 3 of MOGIC's Table 10). `hidden` is the
    width of the feed-forward network, in multiples of the dimensions.

    `loss` is the paper's triplet loss with `margin` and `hardest` negatives, or RAE-XMC's Eq. 10
    with the temperature `tau` (`"contrast"`). `gamma` and `cluster_size` are those of DEXA.
    """

    attended: Count = 3
    metadata: Literal["predicted", "linked"] = "predicted"
    heads: Count = 4
    hidden: Count = 1
    loss: Literal["triplet", "contrast"] = "triplet"
    margin: Positive = 0.3
    hardest: Count = 10
    tau: Positive = 0.04
    gamma: Positive = 1.0
    cluster_size: Count = 2


class Oak(AugmentedLabels):
    """Trains fusion, bank and label vectors, and the encoder unless it is frozen."""

    head: OakHead

    def __init__(self, settings: Settings, head: OakHead) -> None:
        super().__init__(settings, head, gamma=settings.gamma)
        if settings.loss == "contrast":
            self.memory_tau = settings.tau

    def items_of(self, rows: Rows) -> Rows:
        """Return the numbers of the items that training rows [B] attend to."""
        device = self.head.attended.device
        items: Rows = self.head.items_of(torch.from_numpy(rows).to(device)).cpu().numpy()
        return items

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Return q(x) [B, d] and z^_l [P, d]."""
        assert batch.items is not None
        _, labels = super().text_vectors(batch)
        return self.head.fused(batch.instances, batch.rows, batch.items), labels

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return the triplet loss, or RAE-XMC's Eq. 10, of fused instances and augmented labels."""
        settings = self._settings
        instances, labels = self.text_vectors(batch)
        fused = replace(batch, instances=instances, labels=labels)
        if settings.loss == "contrast":
            return fused.contrast_with_instances(tau=settings.tau)
        return batch.triplet(fused.label_scores, margin=settings.margin, hardest=settings.hardest)

    def instance_keys(self, vectors: Floats, items: Floats) -> Floats:
        """Return q for texts with vectors [n, d], which attend to items with vectors [M, d]."""
        return self.head.memory(items).fused(vectors)

    def look_up(self, vectors: Floats, items: Floats) -> None:
        """Predict the items of all training rows [N, d] again."""
        if self._settings.metadata == "linked":
            return
        places = nearest_items(vectors, items, count=self._settings.attended)
        self.head.attended.copy_(torch.from_numpy(places))

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Write the item memory next to the checkpoint, then choose as DEXA does."""
        write_item_memory(
            folder, self.head.fusion, self.head.residuals, attended=self._settings.attended
        )
        return super().choose_settings(finished, folder)


def build(settings: Settings, task: Task) -> Oak:
    """Return the system; its fusion changes nothing yet, and bank vectors are those of the texts.

    Raises `InvalidConfig` if the dimensions cannot be split into heads.
    """
    assert task.items is not None
    if task.dimension % settings.heads:
        raise InvalidConfig(
            f"system.heads must divide the encoder's {task.dimension} dimensions,"
            f" {settings.heads} does not"
        )
    head = OakHead(
        clusters_of(task.label_vectors(), size=settings.cluster_size),
        Fusion(task.dimension, heads=settings.heads, hidden=settings.hidden * task.dimension),
        _attended(settings, task, task.items),
        items=task.items.count,
        sharding=task.sharding,
    )
    return Oak(settings, head)


def _attended(settings: Settings, task: Task, items: ItemsOfTask) -> Rows:
    """Return the first items of each training row, [N, m]; rows that do not train have none."""
    attended = np.full((items.linked.shape[0], settings.attended), NO_ITEM, np.int64)
    if settings.metadata == "linked":
        return linked_items(items.linked, item_frequency(items.linked), count=settings.attended)
    attended[items.rows] = nearest_items(
        task.instance_vectors(), items.vectors(), count=settings.attended
    )
    return attended
