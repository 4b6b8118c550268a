"""The index over the keys of many items; few are scanned, which takes less time.

Shapes: M items, B queries, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.core.bundle.manifest import ItemIndexFacts
from service.core.index.choose_ef import smallest_ef
from service.core.index.faiss_hnsw import SCAN_ROWS_PER_QUEUE_PLACE
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Progress, Segment
from service.core.types import Floats, Halves

# A scan of so many items takes a tenth of a millisecond; a walk through a graph takes a few
# hundredths, and misses some: `python -m loadtests.parts.item_search` measures both.
INDEXED_ITEMS = 2_000
RECALL = 0.99


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemIndex:
    """An opened index, where its file lies, and its facts."""

    path: Path
    segment: Segment
    facts: ItemIndexFacts


def build(
    keys: Halves,
    path: Path,
    *,
    parameters: IndexParameters,
    queries: Floats,
    attended: int,
    progress: Progress,
) -> ItemIndexFacts | None:
    """Build the index over keys [M, d], and return its facts; None, and no file, if a scan is best.

    Its `ef` is the smallest with which it finds the share `RECALL` of the `attended` nearest items
    of `queries` [B, d]. A queue so long that a scan is as quick is too long.
    """
    items, dimension = keys.shape
    if items < INDEXED_ITEMS:
        return None
    library = load_library(parameters.library)
    library.build(keys, parameters, path, progress)
    chosen = smallest_ef(
        library.open(path, rows=items, dimension=dimension),
        keys,
        queries,
        recall=RECALL,
        depth=attended,
        longest=items // SCAN_ROWS_PER_QUEUE_PLACE,
    )
    if chosen.recall < RECALL:
        path.unlink()
        return None
    return ItemIndexFacts(
        library=parameters.library,
        m=parameters.m,
        ef_construction=parameters.ef_construction,
        ef=chosen.ef,
        recall=chosen.recall,
    )


def open(path: Path, facts: ItemIndexFacts, *, items: int, dimension: int) -> ItemIndex:
    """Open a written index; raises `BundleAltered` as the index library does."""
    library = load_library(facts.library)
    segment = library.open(path, rows=items, dimension=dimension)
    return ItemIndex(path=path, segment=segment, facts=facts)
