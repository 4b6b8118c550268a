"""The order in which an index stores its rows: rows that are searched together lie together.

A walk through a graph reads a few thousand vectors around the query. Sorted by cluster, these lie
on fewer pages of memory, and the processor translates fewer addresses: a search of moby takes a
fifth less time and finds the same rows. Clusters of 60 to 1,000 rows make no difference.
"""

from __future__ import annotations

import faiss
import numpy as np

from service.core.index.protocol import batches
from service.core.types import Halves, Rows

_ROWS_PER_CLUSTER = 500
_MOST_CLUSTERS = 1024
_TRAINING_ROWS_PER_CLUSTER = 80
_ITERATIONS = 6
_ASSIGNED_ROWS = 8192  # compared with all centres at a time


def cluster_order(vectors: Halves) -> Rows:
    """Return the numbers of the rows of unit vectors [R, d] in the order of their clusters, [R].

    The clusters are those of spherical k-means; within a cluster, rows keep their order.
    """
    rows, dimension = vectors.shape
    count = min(1 + rows // _ROWS_PER_CLUSTER, _MOST_CLUSTERS)
    if count == 1:
        return np.arange(rows)
    step = max(1, rows // (count * _TRAINING_ROWS_PER_CLUSTER))
    clusters = faiss.Kmeans(dimension, count, niter=_ITERATIONS, spherical=True, seed=0)
    clusters.train(vectors[::step].astype(np.float32))
    cluster_of = np.empty(rows, np.int64)
    for batch in batches(rows, _ASSIGNED_ROWS):
        nearest = clusters.index.search(vectors[batch].astype(np.float32), 1)[1]
        cluster_of[batch] = nearest[:, 0]
    return np.argsort(cluster_of, kind="stable").astype(np.int64)
