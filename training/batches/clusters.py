"""NGAME's clusters: similar instances that are trained in the same batch.

Shapes: n instances, d dimensions.
"""

from __future__ import annotations

import numpy as np

from service.core.types import Floats, Rows

_ROUNDS = 10  # of 2-means; after a few rounds the halves hardly change


def balanced_clusters(vectors: Floats, *, size: int, rng: np.random.Generator) -> list[Rows]:
    """Cut unit vectors [n, d] into clusters of at most `size` by repeated balanced 2-means."""
    clusters, too_large = [], [np.arange(len(vectors), dtype=np.int64)]
    while too_large:
        members = too_large.pop()
        if len(members) <= size:
            clusters.append(members)
            continue
        first_half = balanced_halves(vectors[members], rng=rng)
        too_large += [members[~first_half], members[first_half]]
    return clusters


def balanced_halves(vectors: Floats, *, rng: np.random.Generator) -> np.ndarray:
    """Mark one half of vectors [n, d], found by spherical 2-means; sizes differ by at most one."""
    pair = rng.choice(len(vectors), size=2, replace=False)
    direction = vectors[pair[0]] - vectors[pair[1]]  # [d]
    first_half = np.zeros(len(vectors), bool)
    for _ in range(_ROUNDS):
        order = np.argsort(-(vectors @ direction), kind="stable")
        previous, first_half = first_half, np.zeros(len(vectors), bool)
        first_half[order[: len(vectors) // 2]] = True
        if (first_half == previous).all():
            break
        direction = _centre(vectors[first_half]) - _centre(vectors[~first_half])
    return first_half


def _centre(vectors: Floats) -> Floats:
    mean: Floats = vectors.mean(axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)
