"""NGAME's clusters: instances that are near each other are trained in one batch.

Shapes: n instances, d dimensions.
"""

from __future__ import annotations

import numpy as np

from service.core.types import Floats, Rows

_ROUNDS = 10  # of 2-means; the split moves little after a few


def balanced_clusters(vectors: Floats, *, size: int, rng: np.random.Generator) -> list[Rows]:
    """Cut unit vectors [n, d] into clusters of at most `size` by repeated balanced 2-means."""
    clusters, open_ones = [], [np.arange(len(vectors), dtype=np.int64)]
    while open_ones:
        members = open_ones.pop()
        if len(members) <= size:
            clusters.append(members)
            continue
        left = balanced_halves(vectors[members], rng=rng)
        open_ones += [members[~left], members[left]]
    return clusters


def balanced_halves(vectors: Floats, *, rng: np.random.Generator) -> np.ndarray:
    """Spherical 2-means whose two sides differ by at most one: which vectors fall left, [n]."""
    pair = rng.choice(len(vectors), size=2, replace=False)
    towards = vectors[pair[0]] - vectors[pair[1]]  # [d]
    left = np.zeros(len(vectors), bool)
    for _ in range(_ROUNDS):
        order = np.argsort(-(vectors @ towards), kind="stable")
        before, left = left, np.zeros(len(vectors), bool)
        left[order[: len(vectors) // 2]] = True
        if (left == before).all():
            break
        towards = _centre(vectors[left]) - _centre(vectors[~left])
    return left


def _centre(vectors: Floats) -> Floats:
    mean: Floats = vectors.mean(axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)
