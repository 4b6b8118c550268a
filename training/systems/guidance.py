"""MOGIC's second phase: an oracle that reads metadata guides a system that reads none.

The system, MOGIC's disciple, keeps its own loss L_D and gets two more (section 3.3):

    L = own L_D + alpha L_alignment + beta L_matching        (own is 1 in the paper)
    L_alignment = Triplet(x_D, z_O) + Triplet(x_O, z_D)
    L_matching  = mean ||x_D - x_O|| + mean ||z_D - z_O||

The oracle is a frozen, finished run. It encodes all training texts once, before the first step. If
its vectors have more dimensions than the disciple's, they are projected onto their main directions,
as the paper does for large language models, or by a matrix that is learned with the disciple.

Shapes: B instances, P labels of the pool, N training rows, L labels, d dimensions of the disciple,
D of the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import normalize

from service.core.errors import InvalidConfig
from service.core.types import Floats, Role
from training.checkpoints.run_json import BEST, metadata_of_run, read_run_on
from training.datasets.dataset import Dataset
from training.datasets.metadata_texts import with_metadata
from training.evaluation.encode_texts import encode_texts
from training.models.settings import GuidanceSettings
from training.models.torch_encoder import load_encoder
from training.models.two_heads import main_directions
from training.progress import status
from training.systems.losses import matching
from training.systems.system import EncodedBatch, System


class Projection(nn.Module):  # type: ignore[misc]
    """A learned matrix from the oracle's dimensions to the disciple's (appendix F).

    It starts with the main directions of the vectors [n, D], or with the identity if the disciple
    has no fewer dimensions.
    """

    def __init__(self, dimension: int, vectors: Floats) -> None:
        super().__init__()
        first = torch.eye(vectors.shape[1], dimension)
        if vectors.shape[1] > dimension:
            first = main_directions(vectors, dimension).T.contiguous()
        self.weight = nn.Parameter(first)  # [D, d]

    def forward(self, vectors: Tensor) -> Tensor:
        """Project unit vectors [n, D] to unit vectors [n, d]."""
        return normalize(vectors @ self.weight, dim=-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Guidance:
    """The oracle's unit vectors of all training rows and labels, and the losses with them.

    The vectors have D dimensions if the projection is learned. Checkpoints do not hold it.
    """

    settings: GuidanceSettings
    instances: Tensor  # [N, d] or [N, D]
    labels: Tensor  # [L, d] or [L, D]
    projection: Projection | None = None

    def loss(self, system: System, batch: EncodedBatch) -> Tensor:
        """Return own L_D + alpha L_alignment + beta L_matching."""
        settings = self.settings
        instances, labels = system.text_vectors(batch)  # [B, d], [P, d]
        of_instances = self._rows(self.instances, batch.rows, instances.device)  # [B, d]
        of_labels = self._rows(self.labels, batch.pool, labels.device)  # [P, d]
        loss = settings.own_loss * system.loss(batch)  # 0 keeps all parameters in the graph
        if settings.alpha:
            crossed = (instances @ of_labels.T, of_instances @ labels.T)  # [B, P] each
            loss = loss + settings.alpha * sum(
                batch.triplet(one, margin=settings.margin, hardest=settings.hardest)
                for one in crossed
            )
        if settings.beta:
            apart = matching(instances, of_instances) + matching(labels, of_labels)
            loss = loss + settings.beta * apart
        return loss

    def _rows(self, vectors: Tensor, rows: Tensor, device: torch.device) -> Tensor:
        taken = vectors[rows.cpu()].to(device)
        return taken if self.projection is None else self.projection(taken)


def open_guidance(
    settings: GuidanceSettings,
    system: System,
    dataset: Dataset,
    *,
    dimension: int,
    source: str,
    console: Console,
) -> Guidance | None:
    """Encode the training texts by the oracle of `settings`; return None if there is no oracle.

    The texts of `dataset` have no metadata appended; this is done here, as in the oracle's run.
    Raises `InvalidData` if the oracle is not a finished run, `InvalidInput` if it was trained on
    another data set, and what `guidance_of` raises.
    """
    if settings.oracle is None:
        return None
    run = Path(settings.oracle)
    texts = with_metadata(dataset, metadata_of_run(read_run_on(run, dataset.name), run))
    with status(console, f"encoding {len(texts.train) + len(texts.labels):,} texts by the oracle"):
        encoder = load_encoder(str(run / BEST), stored_precision=True)  # it may be large
        instances = encode_texts(encoder, texts.train.instances.texts, role=Role.QUERY)
        labels = encode_texts(encoder, texts.labels.texts, role=Role.LABEL)
    return guidance_of(
        settings, system, instances=instances, labels=labels, dimension=dimension, source=source
    )


def guidance_of(
    settings: GuidanceSettings,
    system: System,
    *,
    instances: Floats,
    labels: Floats,
    dimension: int,
    source: str,
) -> Guidance:
    """Project the oracle's vectors [N, D] and [L, D] to the system's `dimension` d.

    Raises `InvalidConfig` if the system does not encode labels' texts or, unless the projection is
    learned, if the oracle has fewer dimensions than d.
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
    return Guidance(
        settings=settings,
        instances=vectors[: len(instances)].clone(),
        labels=vectors[len(instances) :].clone(),
        projection=projection,
    )


def projected_on(dimension: int, vectors: Floats, *, source: str) -> Floats:
    """Project unit vectors [n, D] onto their d main directions, as unit vectors [n, d]; d <= D."""
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
