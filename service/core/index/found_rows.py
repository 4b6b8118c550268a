"""The rows that searches found: merged, padded, and limited to a share per key.

Similarities and rows are matrices [B, b], one line per query. Row -1 fills missing places.

The rows of one key take at most 1 / `KEY_SHARE` of the b places of a search. These are its oldest
rows, from the training data, and its newest, which were just posted.

Shapes: B queries, b or n places, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from service.core.index.equal_keys import equal_keys
from service.core.types import Bools, Floats, Halves, Rows

KEY_SHARE = 4
TIE = 1e-6  # similarities closer than this count as equal: fp32 sums depend on the order


def nearest(similarities: Floats, rows: Rows, *, count: int) -> tuple[Floats, Rows]:
    """Return the `count` best of each line [B, n], descending; ties are ordered by row number."""
    order = np.lexsort((rows, -similarities), axis=-1)[:, :count]
    # Flat indexes, because `take` needs a third of the time of `take_along_axis`.
    places = order + np.arange(len(rows))[:, None] * rows.shape[1]
    return similarities.take(places), rows.take(places)


def nothing_found(queries: int, count: int = 0) -> tuple[Floats, Rows]:
    """Return similarities and rows, [B, `count`], of which all places are missing."""
    return np.full((queries, count), -np.inf, np.float32), np.full((queries, count), -1, np.int64)


def pad(similarities: Floats, rows: Rows, *, count: int) -> tuple[Floats, Rows]:
    """Append places with row -1 and similarity -inf until each line has `count` places."""
    if rows.shape[1] >= count:
        return similarities, rows
    missing = nothing_found(len(rows), count - rows.shape[1])
    return np.hstack([similarities, missing[0]]), np.hstack([rows, missing[1]])


def places_per_key(depth: int) -> int:
    """Return how many of `depth` places the rows of one key may take."""
    return -(-depth // KEY_SHARE)


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
    """Give the rows of a key its largest similarity, in sorted lines [B, n]; sort again.

    Parts of a memory add in different orders, so similarities of one key may differ in their last
    bits. Only keys with more than `share` rows change.
    """
    doubtful = np.flatnonzero(crowded(similarities, share, tie=TIE)).tolist()
    if not doubtful:
        return similarities, rows
    similarities = similarities.copy()
    for line in doubtful:
        found = np.flatnonzero(rows[line] >= 0)
        first = equal_keys(vectors_of(rows[line, found])).node_of(np.arange(len(found)))
        many = np.bincount(first)[first] > share
        similarities[line, found[many]] = similarities[line, found[first[many]]]
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
    found = nothing_found(len(rows), count)
    for line, keep in enumerate(kept):
        places = np.flatnonzero(keep)[:count]
        found[0][line, : len(places)] = similarities[line, places]
        found[1][line, : len(places)] = rows[line, places]
    return found
