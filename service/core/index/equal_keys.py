"""Rows that share a key: one node of a graph, and a limited share of the places of a search.

Labels with the same name have equal keys. So have texts that differ only in case, if the encoder is
uncased. A graph would link equal vectors to each other and hide what lies around them. So it has
one node per distinct key, named by the first row with that key.

The rows of one key take at most 1 / `KEY_SHARE` of the b places of a search. These are its oldest
rows, from the training data, and its newest, which were just posted.

Shapes: B queries, b places, R rows, E rows that share the key of an earlier one, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from service.core.index.exact import TIE, nearest
from service.core.index.protocol import batches
from service.core.types import Bools, Floats, Halves, Indices, Rows

KEY_SHARE = 4

_COMPARED_ROWS = 65_536  # rows whose bits are compared at once
_HASH_SEED = 0x9E3779B97F4A7C15


def places_per_key(depth: int) -> int:
    """Return how many of `depth` places the rows of one key may take."""
    return -(-depth // KEY_SHARE)


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
    hashes = np.concatenate([_hashes(vectors[batch]) for batch in batches(rows, _COMPARED_ROWS)])
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


def search_sharing(
    search: Callable[..., tuple[Floats, Rows]],
    queries: Floats,
    *,
    count: int,
    most: int,
    share: int | None,
) -> tuple[Floats, Rows]:
    """Find the `count` nearest rows of queries [B, d], at most `share` of each key.

    `search(queries, count=...)` finds that many nearest rows, as `Segment.search` describes. If the
    rows of one key crowd out others, it is called again for more rows, at most `most`. `share` None
    sets no limit.
    """
    similarities, rows = search(queries, count=count)
    if share is None or not crowded(similarities, share).any():
        return similarities, rows
    wanted = count
    while True:
        kept = _kept(similarities, rows, share)
        short = (kept.sum(axis=1) < count) & (rows[:, -1] >= 0)
        if wanted >= most or not short.any():
            return _first_kept(similarities, rows, kept, count=count)
        wanted = min(4 * wanted, most)
        similarities, rows = search(queries, count=wanted)


def nearest_sharing(
    similarities: Floats, rows: Rows, *, count: int, share: int
) -> tuple[Floats, Rows]:
    """Return the first `count` places of sorted lines [B, n], at most `share` of each key.

    Rows of equal similarity are assumed to share a key: different keys differ in their bits.
    """
    if not crowded(similarities, share).any():
        return similarities[:, :count], rows[:, :count]
    return _first_kept(similarities, rows, _kept(similarities, rows, share), count=count)


def one_similarity_per_key(
    similarities: Floats, rows: Rows, *, share: int, vectors_of: Callable[[Rows], Halves]
) -> tuple[Floats, Rows]:
    """Set the similarity of all rows of a key to its largest, in sorted lines [B, n]; sort again.

    Parts of a memory add in different orders, so similarities of one key may differ in their last
    bits. Lines in which no key can have more than `share` rows stay as they are.
    """
    doubtful = np.flatnonzero(crowded(similarities, share, tie=TIE)).tolist()
    if not doubtful:
        return similarities, rows
    similarities = similarities.copy()
    for line in doubtful:
        found = np.flatnonzero(rows[line] >= 0)
        first = equal_keys(vectors_of(rows[line, found])).node_of(np.arange(len(found)))
        similarities[line, found] = similarities[line, found[first]]
    return nearest(similarities, rows, count=rows.shape[1])


def crowded(similarities: Floats, share: int, *, tie: float = 0.0) -> Bools:
    """Return which sorted lines [B, n] have more than `share` similarities equal within `tie`."""
    if similarities.shape[1] <= share:
        return np.zeros(len(similarities), bool)
    later = similarities[:, share:]
    return np.asarray(((later >= similarities[:, :-share] - tie) & (later > -np.inf)).any(axis=1))


def within_share(values: Floats | Rows, share: int) -> Bools:
    """Return which places [n] of a sorted line the rows of each key may keep.

    Equal values stand for one key. If a key has more than `share` places, half of `share` are its
    first places and half its last.
    """
    if not len(values):
        return np.zeros(0, bool)
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    sizes = np.diff(np.append(starts, len(values)))
    from_start = np.arange(len(values)) - np.repeat(starts, sizes)
    to_end = np.repeat(sizes, sizes) - 1 - from_start
    return np.asarray((from_start < share - share // 2) | (to_end < share // 2))


def _kept(similarities: Floats, rows: Rows, share: int) -> Bools:
    """Return which places of sorted lines [B, n] hold a row within the share of its key."""
    return np.array([within_share(line, share) for line in similarities]) & (rows >= 0)


def _first_kept(
    similarities: Floats, rows: Rows, kept: Bools, *, count: int
) -> tuple[Floats, Rows]:
    """Return the first `count` kept places of each line; missing places hold row -1."""
    found = np.full((len(rows), count), -np.inf, np.float32), np.full((len(rows), count), -1)
    for line, keep in enumerate(kept):
        places = np.flatnonzero(keep)[:count]
        found[0][line, : len(places)] = similarities[line, places]
        found[1][line, : len(places)] = rows[line, places]
    return found


def _bits(vectors: Halves) -> np.ndarray:
    return np.ascontiguousarray(vectors, np.float16).view(np.uint16)


def _hashes(vectors: Halves) -> np.ndarray:
    """Return a 64-bit hash of each vector's bits: a sum of products, modulo 2^64."""
    bits = _bits(vectors).astype(np.uint64)
    factors = np.random.default_rng(_HASH_SEED).integers(
        1, 2**63, size=bits.shape[1], dtype=np.uint64
    )
    return np.asarray(((bits + np.uint64(1)) * (factors | np.uint64(1))).sum(axis=1))
