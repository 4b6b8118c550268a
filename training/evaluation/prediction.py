"""RAE-XMC's prediction over many rows at once, for sweeps: sparse products in place of loops.

It gives what `service.core.prediction.predictor` gives over the same vectors (a test holds it),
much quicker for thousands of rows, and Eq. 11 beside it, which is not served.

Shapes: n queries, N instances, L labels, b retrieved keys, k ranked labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, identity, vstack

from service.core.index.exact import exact_search
from service.core.index.protocol import RowFilter
from service.core.types import Doubles, Floats, Halves, Rows

Ranked = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Keys:
    """K = [X; Z] of Eq. 3 in fp16 as it is served, and Y."""

    keys: Halves  # [N + L, d]
    labels_of: csr_matrix  # [N, L]
    uids: Sequence[str]  # [L]; ties are broken by them

    @property
    def instances(self) -> int:
        """N."""
        return int(self.labels_of.shape[0])

    def values(self, memorization: float) -> csr_matrix:
        """V = [lambda Y; (1 - lambda) I] (Eq. 4), [N + L, L]."""
        y = csr_matrix(self.labels_of != 0).astype(np.float64)
        one = identity(y.shape[1], dtype=np.float64, format="csr")
        return csr_matrix(vstack([memorization * y, (1.0 - memorization) * one]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Retrieved:
    """The b nearest keys of each query, of both blocks and of each alone."""

    both: tuple[Floats, Rows]  # [n, b] each
    instances: tuple[Floats, Rows]
    labels: tuple[Floats, Rows]

    def voting(self, memorization: float, depth: int) -> tuple[Floats, Rows]:
        """Those that can vote at a lambda (Eq. 8), cut at `depth`."""
        kinds = {0.0: self.labels, 1.0: self.instances}
        similarities, rows = kinds.get(memorization, self.both)
        return similarities[:, :depth], rows[:, :depth]


def voters(keys: Keys, memorization: float) -> RowFilter:
    """The keys that can vote at a lambda (Eq. 8)."""
    start = keys.instances if memorization == 0.0 else 0
    return RowFilter(start=start, stop=keys.instances if memorization == 1.0 else len(keys.keys))


def retrieve(keys: Keys, queries: Floats, *, depth: int) -> Retrieved:
    """Search all keys exactly for queries [n, d]."""
    total, split = len(keys.keys), keys.instances
    blocks = [(0, total), (0, split), (split, total)]
    both, instances, labels = (
        exact_search(keys.keys, queries, count=depth, row_filter=RowFilter(start=start, stop=stop))
        for start, stop in blocks
    )
    return Retrieved(both=both, instances=instances, labels=labels)


def predict(
    keys: Keys,
    retrieved: tuple[Floats, Rows],
    *,
    tau: float,
    memorization: float,
    top_k: int,
) -> Ranked:
    """Eq. 7: the ranked labels of each query, [n, k], -1 where nothing is left."""
    return rank(distribution(keys, retrieved, tau=tau) @ keys.values(memorization), keys, top_k)


def predict_separately(
    keys: Keys,
    instances: tuple[Floats, Rows],
    labels: tuple[Floats, Rows],
    *,
    tau: float,
    memorization: float,
    top_k: int,
) -> Ranked:
    """Eq. 11, the "OvA+kNN prediction": two searches, two softmaxes, one convex mix."""
    weights = distribution(keys, instances, tau=tau) + distribution(keys, labels, tau=tau)
    return rank(weights @ keys.values(memorization), keys, top_k)


def distribution(keys: Keys, retrieved: tuple[Floats, Rows], *, tau: float) -> csr_matrix:
    """Softmax(q K / tau) over the retrieved keys (Eq. 5), [n, N + L]."""
    similarities, rows = retrieved
    logits = np.where(rows >= 0, similarities.astype(np.float64) / tau, -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    found = rows >= 0
    lines = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)
    shape = (len(rows), len(keys.keys))
    return csr_matrix((weights[found], (lines[found], rows[found])), shape=shape)


def rank(scores: csr_matrix, keys: Keys, top_k: int) -> Ranked:
    """The best labels of each line of [n, L], ties in order of label id."""
    by_uid = np.argsort(np.argsort(np.array(keys.uids, object), kind="stable"))  # [L]
    ranked = np.full((scores.shape[0], top_k), -1, np.int64)
    for line in range(scores.shape[0]):
        entries = slice(scores.indptr[line], scores.indptr[line + 1])
        columns, values = scores.indices[entries], scores.data[entries]
        best = _best(values, top_k)
        order = np.lexsort((by_uid[columns[best]], -values[best]))[:top_k]
        ranked[line, : len(order)] = columns[best][order]
    return ranked


def _best(values: Doubles, top_k: int) -> Rows:
    """Places of the top_k values and of all that tie with the last."""
    if len(values) <= top_k:
        return np.arange(len(values))
    least = np.partition(values, len(values) - top_k)[len(values) - top_k]
    return np.flatnonzero(values >= least)
