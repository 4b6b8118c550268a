"""Two queries and four labels for systems with two heads; no query has the last label."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from training.models.two_heads import TwoHeads
from training.systems.system import EncodedBatch, Task

LABELS, ENCODER, CLASSIFIER = 4, 3, 2
LABELS_OF = csr_matrix(np.array([[1, 1, 0, 0], [0, 0, 1, 0]], np.float32))
POSITIVES = torch.from_numpy(LABELS_OF.toarray() > 0)


@pytest.fixture
def vectors() -> torch.Tensor:
    """Vectors [D; C] of the queries, then of the labels."""
    return torch.randn(6, ENCODER + CLASSIFIER, generator=torch.Generator().manual_seed(2))


def two_headed_task(vectors: torch.Tensor, *, heads: bool = True, **options: str) -> Task:
    two = TwoHeads(inputs=5, encoder=ENCODER, classifier=CLASSIFIER, **options)
    return Task(
        labels=LABELS,
        dimension=ENCODER + CLASSIFIER,
        label_vectors=lambda: vectors[2:].numpy(),
        instance_vectors=lambda: vectors[:2].numpy(),
        labels_of=LABELS_OF,
        heads=two if heads else None,
    )


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
