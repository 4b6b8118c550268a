"""A trained memory of metadata items: looks up what a query is about, and fuses it.

Shapes: n queries, M items, m items of a query, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from service.core.types import Floats, Rows
from training.datasets.metadata_links import NO_ITEM
from training.systems.oak.fusion import Fusion

_CHUNK = 4_096  # queries that are compared or fused at once


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemVectors:
    """The items as queries find them, and as queries read them."""

    keys: Floats  # [M, d] unit vectors of the items' texts
    values: Floats  # [M, d] the bank: the same vectors with what was learned added
    attended: int  # m
    fusion: Fusion

    def predicted(self, queries: Floats) -> Rows:
        """The m items most similar to each query [n, d], as places [n, m]."""
        return nearest_items(queries, self.keys, count=self.attended)

    def fused(self, queries: Floats, places: Rows | None = None) -> Floats:
        """The queries [n, d] fused with the items at `places` [n, m]; default: the predicted."""
        places = self.predicted(queries) if places is None else places
        device = self.fusion.scale.device
        fused, training = np.empty_like(queries), self.fusion.training
        self.fusion.eval()
        with torch.no_grad():
            for start in range(0, len(queries), _CHUNK):
                cut = slice(start, start + _CHUNK)
                inputs = (queries[cut], self.values[places[cut]], places[cut] != NO_ITEM)
                tensors = (torch.from_numpy(np.ascontiguousarray(part)) for part in inputs)
                fused[cut] = self.fusion(*(part.to(device) for part in tensors)).cpu().numpy()
        self.fusion.train(training)
        return fused


def nearest_items(queries: Floats, keys: Floats, *, count: int) -> Rows:
    """The places [n, m] of the most similar of keys [M, d] to queries [n, d], the best first.

    Of equally similar items the first one counts. Where M is smaller than m, `NO_ITEM` fills up.
    """
    places = np.full((len(queries), count), NO_ITEM, np.int64)
    found = min(count, len(keys))
    for start in range(0, len(queries), _CHUNK):
        similarities = queries[start : start + _CHUNK] @ keys.T
        places[start : start + _CHUNK, :found] = _best(similarities, count=found)
    return places


def _best(similarities: Floats, *, count: int) -> Rows:
    """The places of the `count` largest of each line [n, M], descending; equal ones by place."""
    if not count:
        return np.zeros((len(similarities), 0), np.int64)
    cut = similarities.shape[1] - count
    last = np.partition(similarities, cut, axis=1)[:, cut, None]  # [n, 1], the smallest that counts
    above, equal = similarities > last, similarities == last
    missing = count - above.sum(axis=1, keepdims=True)
    chosen = above | (equal & (equal.cumsum(axis=1) <= missing))
    places = np.nonzero(chosen)[1].reshape(-1, count)  # ascending
    order = np.argsort(-np.take_along_axis(similarities, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)
