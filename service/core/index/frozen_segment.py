"""A frozen segment: a graph over distinct keys that is searched for rows.

A graph's walk visits as many nodes as its queue is long, whether or not their rows pass a filter.
If the filter excludes the region around the query, such as a deleted one, a plain walk misses the
rows behind it. The way of filtering here works for every index library.

| file           | content                                                               |
|----------------|-----------------------------------------------------------------------|
| `NAME.index`   | the graph, in the index library's own format                          |
| `NAME.equal.npy` | only if rows share keys: int64 [2, E], `EqualKeys`' `first`, `later` |

Shapes: B queries, R rows, d dimensions.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from threading import Lock

import numpy as np
from cachetools import LRUCache

from service.core.errors import BundleAltered
from service.core.index.equal_keys import NO_EQUAL_KEYS, EqualKeys, equal_keys
from service.core.index.found_rows import nothing_found, within_share
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Graph, Progress, RowFilter, Subset
from service.core.types import Floats, Halves, Rows

# `python -m loadtests.filters` measures recall and CPU time with these numbers, by share and place
# of the rows that pass. `test_frozen_segment.py` holds the recall.
SCAN_ROWS_PER_QUEUE_PLACE = 60  # rows (d = 384) scanned in the time that one queue place costs
_LONGEST_QUEUE = 4096
_SPARE_NODES = 8  # visited in addition to those expected to pass, plus _SPARE_DEVIATIONS
_SPARE_DEVIATIONS = 3  # of the number that passes, if filter and query have nothing in common
_SPARE_EXPONENT = 0.4  # measured: with it, filtered walks have the recall of unfiltered ones
MOST_COPIED = 80_000  # nodes whose vectors are copied for recent filters: 61 MB at d = 384
_COPIED_SHARE = 0.75  # of the nodes of a small segment
_NODES_LISTED = 64  # nodes without their vectors, in the memory of one copied node


class FrozenSegment:
    """An open graph and the rows of its nodes. Searches run in the calling thread."""

    def __init__(
        self, graph: Graph, *, rows: int, equal: EqualKeys = NO_EQUAL_KEYS, least_ef: int = 0
    ) -> None:
        """Search `rows` rows; those in `equal` share the node of an earlier row.

        The queue is at least `least_ef` long.
        """
        self._graph, self._rows, self._equal, self._least_ef = graph, rows, equal, least_ef

        most = min(MOST_COPIED, int(_COPIED_SHARE * rows))
        self._subsets: LRUCache[RowFilter, Subset] = LRUCache(max(1, most), getsizeof=_copied)
        self._lock = Lock()

    @property
    def rows(self) -> int:
        """The number of rows in the segment."""
        return self._rows

    @property
    def nodes(self) -> int:
        """The number of distinct keys."""
        return self._rows - len(self._equal.later)

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int,
        row_filter: RowFilter | None,
        share: int | None = None,
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows, as `Segment.search` describes; the queue is at least `count` long.

        With a filter, a walk is as long as the share of passing rows requires. If a scan of these
        rows is quicker, they are scanned instead.
        """
        queue = max(ef, count, self._least_ef)
        if row_filter is None:
            similarities, nodes = self._graph.walk(queries, count=count, queue=queue)
            if not len(self._equal.later):
                return similarities, nodes
            return self._rows_found(similarities, nodes, count, None, share)[:2]
        similarities, rows = nothing_found(len(queries), count)
        for line in range(len(queries)):
            similarities[line], rows[line] = self._nearest_passing(
                queries[line : line + 1], count, queue, row_filter, share
            )
        return similarities, rows

    def _nearest_passing(
        self, query: Floats, count: int, queue: int, row_filter: RowFilter, share: int | None
    ) -> tuple[Floats, Rows]:
        """Find the `count` nearest rows of a query [1, d] that pass a filter.

        A walk's result counts only if enough rows of its nearest nodes pass. Otherwise the next
        walk's length follows from the share that passed there: a filter may exclude most of what
        is near the query. A scan follows once it is quicker than the next walk.
        """
        passing = row_filter.selected()
        longest = min(_LONGEST_QUEUE, passing // SCAN_ROWS_PER_QUEUE_PLACE)
        likely = passing / self._rows  # share of a walk's nodes
        while (walked := _expected_walk(count, queue, likely)) < longest:
            sure = walked - (queue - count)  # with or without a filter, the last may be incomplete
            found = self._graph.walk(query, count=walked, queue=walked)
            similarities, rows, passed = self._rows_found(
                *found, count, row_filter, share, sure=sure
            )
            if passed[0] >= count:
                return similarities, rows
            likely = min(passed[0] / sure, likely / 2)  # so that walks get longer quickly
        subset = self._passing(row_filter)
        if not len(subset.nodes):
            return nothing_found(1, count)
        found = subset.search(query, count=min(count, len(subset.nodes)))
        return self._rows_found(*found, count, row_filter, share)[:2]

    def vectors(self, rows: Rows) -> Halves:
        """Return the vectors [n, d] of `rows` [n]."""
        return self._graph.vectors(self._equal.node_of(rows))

    def _passing(self, row_filter: RowFilter) -> Subset:
        """Return the nodes that pass a filter; from its second use on, with their own copy.

        Most filters of a memory that changes are used once, and copying would take longer.
        """
        with self._lock:
            known = self._subsets.get(row_filter)
        if known is None:
            rows = np.arange(row_filter.start, row_filter.stop)[row_filter.mask()]
            nodes = rows if not len(self._equal.later) else np.unique(self._equal.node_of(rows))
            subset = self._graph.subset(nodes, copied=False)
        elif known.is_copy or len(known.nodes) > self._subsets.maxsize:
            return known
        else:
            subset = self._graph.subset(known.nodes, copied=True)
        with self._lock, suppress(ValueError):  # a small segment has no room for some subsets
            self._subsets[row_filter] = subset
        return subset

    def _rows_found(
        self,
        similarities: Floats,
        nodes: Rows,
        count: int,
        row_filter: RowFilter | None,
        share: int | None,
        *,
        sure: int = 0,
    ) -> tuple[Floats, Rows, Rows]:
        """Return the first `count` rows of the found `nodes` [B, n], with their similarities.

        Only rows that pass the filter are returned, at most `share` of each node; row -1 fills
        missing places. Also returns how many such rows the first `sure` nodes have [B].
        """
        found = nothing_found(len(nodes), count)
        passed = np.zeros(len(nodes), np.int64)
        for line, of_line in enumerate(nodes):
            rows, place = self._equal.expand(of_line)
            crowded = share is not None and len(rows) - len(of_line) >= share
            if row_filter is not None:
                passing = row_filter.allows(rows)
                rows, place = rows[passing], place[passing]
            if share is not None and crowded:  # otherwise no node exceeds its share
                kept = within_share(place, share)
                rows, place = rows[kept], place[kept]
            if row_filter is not None:
                passed[line] = np.searchsorted(place, sure)
            size = min(count, len(rows))
            found[0][line, :size] = similarities[line].take(place[:size])
            found[1][line, :size] = rows[:size]
        return *found, passed


def _copied(subset: Subset) -> int:
    """Return the memory of a subset, in copied nodes."""
    nodes = len(subset.nodes)
    return nodes if subset.is_copy else nodes // _NODES_LISTED


def build_segment(
    vectors: Halves, parameters: IndexParameters, path: Path, progress: Progress
) -> FrozenSegment:
    """Build the graph over the distinct vectors among [R, d] on all cores at `path`, and open it.

    `progress` is called with the number of finished nodes, and with R at the end.
    """
    equal = equal_keys(vectors)
    nodes = equal.nodes(len(vectors))
    library = load_library(parameters.library)
    distinct = vectors[nodes] if len(equal.later) else vectors
    library.build(distinct, nodes, parameters, path, progress)
    if len(equal.later):
        np.save(equal_path(path), np.stack([equal.first, equal.later]))
        progress(len(vectors))
    rows, dimension = vectors.shape
    return open_segment(
        path, library=parameters.library, rows=rows, dimension=dimension, nodes=len(nodes)
    )


def open_segment(
    path: Path,
    *,
    library: str,
    rows: int,
    dimension: int,
    nodes: int | None = None,
    least_ef: int = 0,
) -> FrozenSegment:
    """Open a written segment for searching, memory-mapped if the library supports that.

    `nodes` is the number of distinct keys; None means that it equals `rows`. A graph that misses
    the recall goal is searched with a queue of at least `least_ef`. Raises `BundleAltered` if the
    file is damaged or does not hold `rows` vectors of `dimension`.
    """
    shared = rows - (rows if nodes is None else nodes)
    if shared < 0:
        raise BundleAltered(f"{path} cannot hold {nodes} distinct keys of {rows} rows")
    equal = _read_equal_keys(equal_path(path), rows, shared) if shared else NO_EQUAL_KEYS
    graph = load_library(library).open(path, nodes=equal.nodes(rows), dimension=dimension)
    return FrozenSegment(graph, rows=rows, equal=equal, least_ef=least_ef)


def equal_path(path: Path) -> Path:
    """Return the path of the list of rows that share a key; it lies next to the graph at `path`."""
    return path.with_suffix(".equal.npy")


def _read_equal_keys(path: Path, rows: int, shared: int) -> EqualKeys:
    """Read the `shared` rows that have the key of an earlier row; raises `BundleAltered`."""
    try:
        pairs = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BundleAltered(f"{path} is not a list of equal rows") from error
    if pairs.dtype != np.int64 or pairs.shape != (2, shared):
        raise BundleAltered(
            f"{path} holds {pairs.dtype} {list(pairs.shape)}, expected int64 {[2, shared]}"
        )
    first, later = pairs
    inside = (first >= 0) & (first < later) & (later < rows)
    rising = (np.diff(first) > 0) | ((np.diff(first) == 0) & (np.diff(later) > 0))
    first_is_later = np.isin(first, later).any()
    twice = len(np.unique(later)) < len(later)
    if not (inside.all() and rising.all()) or first_is_later or twice:
        raise BundleAltered(f"{path} does not list equal rows among {rows} in their order")
    return EqualKeys(first=first, later=later)


def _expected_walk(count: int, queue: int, share: float) -> int:
    """Return how long a walk must be if a `share` of its nodes passes and `count` are wanted.

    Without a filter, the queue would have `queue` places. Longer walks miss fewer nodes, so the
    places beyond `count` need not grow as much as the walk.
    """
    if not share:
        return _LONGEST_QUEUE
    wanted = count + (queue - count) * share**_SPARE_EXPONENT
    spare = _SPARE_DEVIATIONS * math.sqrt(wanted * (1.0 - share))
    return int((wanted + spare) / share) + _SPARE_NODES
