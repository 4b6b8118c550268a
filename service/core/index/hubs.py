"""Hubs: keys that are near to many queries, and therefore to many queries that they do not answer.

A part of a key's hubness is subtracted from its similarity to every query, which is half of
cross-domain similarity local scaling (CSLS; Conneau et al., 2018, "Word Translation Without
Parallel Data", Eq. 3). The other half is the same for all keys of a query, so it changes no order.

Shapes: R rows, N instances, B queries, b retrieved keys.
"""

from __future__ import annotations

import numpy as np

from service.core.index.exact import exact_search
from service.core.index.protocol import RowFilter, batches
from service.core.types import Floats, Halves, Rows

NEAREST = 10  # known queries whose similarity to a key is its hubness, as in the paper
MOST_QUERIES = 4_096  # known queries that are compared with each key
_COMPARED_ROWS = 8_192  # at once


def hubness(keys: Halves, *, instances: int) -> Floats:
    """Return how near each key [R, d] is to known queries, more than keys are on average, [R].

    The first N = `instances` keys are the known queries. A key's hubness is its mean similarity to
    the nearest ones, without itself. Of many known queries, a sample is compared.
    """
    drawn = np.sort(np.random.default_rng(0).permutation(instances)[:MOST_QUERIES])
    queries, found = keys[drawn], np.zeros(len(keys), np.float32)
    if len(drawn) <= NEAREST:
        return found
    every = RowFilter(start=0, stop=len(drawn))
    for batch in batches(len(keys), _COMPARED_ROWS):
        similarities, places = exact_search(
            queries, keys[batch].astype(np.float32), count=NEAREST + 1, row_filter=every
        )
        itself = drawn[places] == np.arange(len(keys))[batch, None]
        others = np.sort(np.where(itself, np.float32(-np.inf), similarities), axis=1)
        found[batch] = others[:, 1:].mean(axis=1)  # without itself, or without the farthest
    above: Floats = found - found.mean()
    return above


def penalties(hubs: Floats, *, share: float) -> Halves:
    """Return what is subtracted from the similarities of keys [R]: a share of their hubness."""
    return (share * hubs).astype(np.float16)


def without_hubs(similarities: Floats, rows: Rows, subtracted: Halves) -> tuple[Floats, Rows]:
    """Return similarities and rows [B, b] after the rows' penalties [B, b], descending."""
    similarities = similarities - subtracted
    order = np.argsort(-similarities, axis=1, kind="stable")
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)
