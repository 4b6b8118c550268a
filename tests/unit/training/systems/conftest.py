"""Two queries and four labels; no query has the last label."""

import numpy as np
import torch
from scipy.sparse import csr_matrix

from training.systems.system import EncodedBatch

LABELS_OF = csr_matrix(np.array([[1, 1, 0, 0], [0, 0, 1, 0]], np.float32))
POSITIVES = torch.from_numpy(LABELS_OF.toarray() > 0)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    """Draw unit vectors."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def batch_of(
    instances: torch.Tensor,
    labels: torch.Tensor,
    *,
    positives: torch.Tensor = POSITIVES,
    sampled: torch.Tensor | None = None,
) -> EncodedBatch:
    """Return a batch with the first labels as pool; by default, every positive is sampled."""
    return EncodedBatch(
        instances=instances,
        labels=labels,
        rows=torch.arange(len(instances)),
        pool=torch.arange(len(labels)),
        sampled=positives if sampled is None else sampled,
        positives=positives,
        negatives=~positives,
        instance_negatives=~torch.eye(len(instances), dtype=torch.bool),
    )
