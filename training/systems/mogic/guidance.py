"""MOGIC's second phase: an oracle that read the metadata guides a system that does without.

The system, MOGIC's disciple, keeps its own loss L_D and gets two more (section 3.3):

    L = own L_D + alpha L_alignment + beta L_matching        (own is 1 in the paper)
    L_alignment = Triplet(x_D, z_O) + Triplet(x_O, z_D)
    L_matching  = mean ||x_D - x_O|| + mean ||z_D - z_O||

The oracle is frozen: its vectors of all training texts are made once, before the first step. Where
it has more dimensions than the disciple, they are projected on their main directions, as the paper
does with those of large language models, or by a matrix that is learned with the disciple.

Shapes: B instances, P labels of the pool, N training rows, L labels, d dimensions of the disciple,
D of the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from service.core.errors import InvalidConfig
from service.core.types import Floats
from training.models.two_heads import main_directions
from training.systems.losses import matching
from training.systems.mogic.settings import GuidanceSettings
from training.systems.system import EncodedBatch, System
from training.systems.wrapped import WrappedSystem


@dataclass(frozen=True, kw_only=True, eq=False)
class OracleVectors:
    """The oracle's unit vectors of all training rows [N, d] and of all labels [L, d].

    With a learned projection they have D dimensions.
    """

    instances: Tensor
    labels: Tensor


class Projection(nn.Module):  # type: ignore[misc]
    """A learned matrix from the oracle's dimensions to the disciple's (appendix F).

    It starts with the main directions of the vectors [n, D]; where the disciple has no fewer
    dimensions, with the identity.
    """

    def __init__(self, dimension: int, vectors: Floats) -> None:
        super().__init__()
        larger = vectors.shape[1] > dimension
        first = (
            main_directions(vectors, dimension).T.contiguous()
            if larger
            else torch.eye(vectors.shape[1], dimension)
        )
        self.weight = nn.Parameter(first)  # [D, d]

    def forward(self, vectors: Tensor) -> Tensor:
        """Unit vectors [n, d] of unit vectors [n, D]."""
        return normalize(vectors @ self.weight, dim=-1)


class Guided(WrappedSystem):
    """A system whose encoder an oracle guides; all but the loss is the system's."""

    def __init__(
        self,
        system: System,
        settings: GuidanceSettings,
        oracle: OracleVectors,
        projection: Projection | None = None,
    ) -> None:
        super().__init__(system)
        self._settings, self._oracle = settings, oracle
        self.training_only = projection

    def loss(self, batch: EncodedBatch) -> Tensor:
        """own L_D + alpha L_alignment + beta L_matching."""
        settings, oracle = self._settings, self._oracle
        instances, labels = self.text_vectors(batch)  # [B, d], [P, d]
        device = instances.device
        of_instances = self._projected(oracle.instances[batch.rows.cpu()].to(device))  # [B, d]
        of_labels = self._projected(oracle.labels[batch.pool.cpu()].to(device))  # [P, d]
        loss = settings.own_loss * self._system.loss(batch)  # 0 keeps all parameters in the graph
        if settings.alpha:
            crossed = (instances @ of_labels.T, of_instances @ labels.T)  # [B, P] each
            loss = loss + settings.alpha * sum(self._triplet(batch, one) for one in crossed)
        if settings.beta:
            apart = matching(instances, of_instances) + matching(labels, of_labels)
            loss = loss + settings.beta * apart
        return loss

    def _projected(self, vectors: Tensor) -> Tensor:
        return vectors if self.training_only is None else self.training_only(vectors)

    def _triplet(self, batch: EncodedBatch, scores: Tensor) -> Tensor:
        return batch.triplet(scores, margin=self._settings.margin, hardest=self._settings.hardest)


def guided(
    system: System,
    settings: GuidanceSettings,
    *,
    instances: Floats,
    labels: Floats,
    dimension: int,
    source: str,
) -> Guided:
    """The system with the guidance of an oracle, whose vectors are [N, D] and [L, D].

    `dimension` is d. Raises `InvalidConfig` for a system whose labels have no text vectors and,
    unless the projection is learned, for an oracle with fewer dimensions than d.
    """
    if not system.encodes_labels:
        raise InvalidConfig(f"{source}: guidance needs a system that encodes the labels' texts")
    if system.heads is not None:
        dimension = system.heads.encoder
    found, projection = np.concatenate([instances, labels]), None
    if settings.projection == "learned":
        projection = Projection(dimension, found)
    else:
        found = projected_on(dimension, found, source=source)
    vectors = torch.from_numpy(found)
    oracle = OracleVectors(
        instances=vectors[: len(instances)].clone(), labels=vectors[len(instances) :].clone()
    )
    return Guided(system, settings, oracle, projection)


def projected_on(dimension: int, vectors: Floats, *, source: str) -> Floats:
    """Unit vectors [n, d] along the d main directions of unit vectors [n, D], d <= D."""
    if vectors.shape[1] == dimension:
        return vectors
    if vectors.shape[1] < dimension:
        raise InvalidConfig(
            f"{source}: the oracle has {vectors.shape[1]} dimensions, fewer than the {dimension}"
            " that it is to guide; take a larger oracle, a system with fewer, or"
            " guidance.projection = 'learned'"
        )
    main = torch.from_numpy(vectors) @ main_directions(vectors, dimension).T
    unit: Floats = normalize(main, dim=-1).numpy()
    return unit
