"""Rows that share a key are one node of a graph.

Labels with the same name have equal keys. So have texts that differ only in case, if the encoder is
uncased. A graph would link equal vectors to each other and hide what lies around them. So it has
one node per distinct key, named by the first row with that key.

Shapes: R rows, E rows that share the key of an earlier one, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from service.core.index.protocol import Keys, batches
from service.core.types import Halves, Indices, Rows

_COMPARED_ROWS = 65_536  # rows whose bits are compared at once
_HASHED_ROWS = 8_192  # at once
_HASH_FACTOR = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True, eq=False)
class EqualKeys:
    """The rows that have the key of an earlier row.

    Row `later[i]` has the key of row `first[i]`. Both are int64 [E], sorted by `first`, then by
    `later`.
    """

    first: Rows
    later: Rows

    def nodes(self, rows: int) -> Rows:
        """Return the first row of each distinct key among `rows` rows, ascending."""
        return np.delete(np.arange(rows), self.later)

    def node_of(self, rows: Rows) -> Rows:
        """Return the node of each of `rows`, an array of any shape."""
        if not len(self.later):
            return rows
        ascending, first = self._by_later
        place = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)
        return np.where(ascending[place] == rows, first[place], rows)

    def expand(self, nodes: Rows) -> tuple[Rows, Rows]:
        """Return the rows [n] of `nodes` [m], node after node, and for each row its node's place.

        Node -1 stands for no node and becomes row -1. Only the last nodes may be -1.
        """
        starts = self._starts
        known = nodes if not len(nodes) or nodes[-1] >= 0 else nodes[nodes >= 0]
        known = np.minimum(known, len(starts) - 2)  # for nodes after the last of `first`
        low = starts[known]
        counts = np.ones(len(nodes), np.int64)
        counts[: len(known)] += starts[known + 1] - low
        place = np.repeat(np.arange(len(nodes)), counts)
        rows = nodes[place]
        shared = np.flatnonzero(counts > 1)
        if len(shared):
            ends = np.cumsum(counts)
            for node in shared.tolist():
                end, size = ends[node], counts[node] - 1
                rows[end - size : end] = self.later[low[node] : low[node] + size]
        return rows, place

    @cached_property
    def _by_later(self) -> tuple[Rows, Rows]:
        """`later` in ascending order, and the `first` row of each, [E]."""
        order = np.argsort(self.later)
        return self.later[order], self.first[order]

    @cached_property
    def _starts(self) -> Indices:
        """The place in `later` at which each row's later rows start, up to the last of `first`."""
        last = int(self.first[-1]) if len(self.first) else -1
        starts = np.searchsorted(self.first, np.arange(last + 2)).astype(np.int32)
        return np.append(starts, starts[-1:])


NO_EQUAL_KEYS = EqualKeys(first=np.zeros(0, np.int64), later=np.zeros(0, np.int64))


def equal_keys(vectors: Halves) -> EqualKeys:
    """Find the rows of vectors [R, d] that are bit for bit equal to an earlier row."""
    rows = len(vectors)
    if not rows:
        return NO_EQUAL_KEYS
    hashes = key_hashes(vectors)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    first_of = first[inverse]
    later = np.flatnonzero(first_of != np.arange(rows))
    # Different bits almost never have equal hashes. If they do, the row keeps its own node.
    same = [
        (_bits(vectors[later[batch]]) == _bits(vectors[first_of[later[batch]]])).all(axis=1)
        for batch in batches(len(later), _COMPARED_ROWS)
    ]
    later = later[np.concatenate([np.zeros(0, bool), *same])]
    order = np.lexsort((later, first_of[later]))
    return EqualKeys(first=first_of[later][order].astype(np.int64), later=later[order])


def _bits(vectors: Halves) -> np.ndarray:
    return np.ascontiguousarray(vectors, np.float16).view(np.uint16)


def key_hashes(vectors: Keys) -> NDArray[np.uint64]:
    """Return a 64-bit hash [R] of each vector's bits: a polynomial in a constant, modulo 2^64.

    Shards divide rows by it, so it must never change.
    """
    factors = _hash_factors(vectors.shape[1])
    hashes = [
        (_bits(vectors[batch]).astype(np.uint64) + np.uint64(1)) @ factors
        for batch in batches(len(vectors), _HASHED_ROWS)
    ]
    return np.concatenate([np.zeros(0, np.uint64), *hashes])


@cache
def _hash_factors(dimension: int) -> NDArray[np.uint64]:
    factors = [pow(_HASH_FACTOR, power, 2**64) for power in range(1, dimension + 1)]
    return np.array(factors, np.uint64)
