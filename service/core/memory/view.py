"""One version of the knowledge memory (Eq. 3 and 4 of RAE-XMC): what readers see.

Rows are numbered once and for all: the bundle's N instance rows, its L label rows, then what came
live, in the order of the log. Frozen segments are searched through their graphs, live rows exactly.

Shapes: B queries, b keys a query, N instances, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from rpds import HashTrieMap, HashTrieSet

from service.core.bundle.bundle import Bundle
from service.core.index.exact import exact_search, nearest, pad
from service.core.index.protocol import RowFilter
from service.core.memory.compaction import Extent
from service.core.memory.label_table import LabelTable
from service.core.memory.part import Part, Votes, dead_places, gather
from service.core.memory.sealed_rows import SealedRows
from service.core.types import Bits, Bools, Floats, Halves, RowKind, Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Click:
    """A posted query's row and the columns that it votes for."""

    row: int
    columns: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Which rows belong to what; only the writer asks.

    `own_rows` are the rows of each label that was put, by its column: those that its next form
    replaces. `clicks` are the posted queries, `clickers` those that vote for a column.
    """

    own_rows: HashTrieMap[int, tuple[int, ...]] = field(default_factory=HashTrieMap)
    clicks: HashTrieMap[str, Click] = field(default_factory=HashTrieMap)
    clickers: HashTrieMap[int, HashTrieSet[str]] = field(default_factory=HashTrieMap)

    def rows_of(self, column: int, bundle: Bundle) -> tuple[int, ...]:
        """A label's own row, then those of its queries."""
        own = self.own_rows.get(column)
        if own is not None:
            return own
        return (bundle.instances + column, *bundle.label_details.at(column).rows)


@dataclass(frozen=True, kw_only=True)
class View:
    """The memory at one version; nothing in it ever changes.

    `parts` hold what came live, in order of their rows; `extents` say which of those rows are to
    lie in one sealed part.
    """

    version: int
    bundle: Bundle
    base_alive: Bits | None
    base_dead: int
    parts: tuple[Part, ...]
    extents: tuple[Extent, ...]
    labels: LabelTable
    ledger: Ledger

    @property
    def base_rows(self) -> int:
        """N + L of the bundle."""
        return self.bundle.instances + self.bundle.labels

    @property
    def next_row(self) -> int:
        """The number that the next live row gets."""
        return self.parts[-1].stop if self.parts else self.base_rows

    @property
    def sealed_rows(self) -> int:
        """Rows in sealed parts, dead ones included."""
        return sum(part.stored for part in self.parts if isinstance(part, SealedRows))

    @property
    def live_rows(self) -> int:
        """Rows that came live and are still stored, sealed and dead ones included."""
        return sum(part.stored for part in self.parts)

    @property
    def dead_rows(self) -> int:
        """Rows that were replaced or deleted and are still stored."""
        return self.base_dead + sum(part.dead for part in self.parts)

    def unsealed(self) -> Iterator[Extent]:
        """The extents that are planned and not sealed yet."""
        sealed = {id(part.extent) for part in self.parts if isinstance(part, SealedRows)}
        return (extent for extent in self.extents if id(extent) not in sealed)

    def retrieve(
        self, queries: Floats, *, depth: int, kind: RowKind | None = None, exact: bool = False
    ) -> tuple[Floats, Rows]:
        """Find the `depth` nearest keys of each query [B, d].

        Returns similarities [B, b], descending, and row numbers [B, b]; row -1 fills places for
        which the memory has no row. `kind` searches one block of K only; `exact` scans all
        keys in place of the graphs.
        """
        found = [self._search_base(queries, depth=depth, kind=kind, exact=exact)]
        ef = None if exact else self.bundle.manifest.index.ef
        least = found[0][0][:, -1]  # of the base, -inf where it could not fill the depth
        found += [
            part.search(queries, count=depth, ef=ef, kind=kind, above=least) for part in self.parts
        ]
        similarities = np.hstack([part[0] for part in found])
        rows = np.hstack([part[1] for part in found])
        similarities = np.where(rows < 0, np.float32(-np.inf), similarities)
        return pad(*nearest(similarities, rows, count=depth), count=depth)

    def is_instance(self, rows: Rows) -> Bools:
        """Which of `rows` [b] are instance rows."""
        answer = rows < self.bundle.instances
        for part, places in self._by_part(rows):
            answer[places] = part.is_instance(rows[places])
        return np.asarray(answer)

    def votes(self, rows: Rows) -> Votes:
        """The value rows of `rows` [b]: columns [n] one row after the other, and how many each.

        Votes for deleted labels are left out.
        """
        instances = np.flatnonzero(rows < self.bundle.instances)
        labels = np.flatnonzero((rows >= self.bundle.instances) & (rows < self.base_rows))
        found = [
            (instances, *gather(self.bundle.indptr, self.bundle.indices, rows[instances])),
            # The identity block: a label's row votes for its own column.
            (labels, rows[labels] - self.bundle.instances, np.ones(len(labels), np.int64)),
        ]
        found += [(places, *part.votes(rows[places])) for part, places in self._by_part(rows)]
        key_of_vote = np.concatenate([np.repeat(places, counts) for places, _, counts in found])
        columns = np.concatenate([columns for _, columns, _ in found]).astype(np.int32)
        in_order = np.argsort(key_of_vote, kind="stable")
        key_of_vote, columns = key_of_vote[in_order], columns[in_order]
        if len(self.labels.deleted):
            kept = ~self.labels.is_deleted(columns)
            key_of_vote, columns = key_of_vote[kept], columns[kept]
        return columns, np.bincount(key_of_vote, minlength=len(rows))

    def vectors(self, rows: Rows) -> Halves:
        """The keys [b, d] of `rows` [b]."""
        vectors = np.empty((len(rows), self.bundle.keys.shape[1]), np.float16)
        base = rows < self.base_rows
        vectors[base] = self.bundle.keys[rows[base]]
        for part, places in self._by_part(rows):
            vectors[places] = part.vectors(rows[places])
        return vectors

    def text(self, row: int) -> str:
        """The text that a row's key was made from."""
        if row < self.bundle.instances:
            return self.bundle.instance_texts[row]
        if row < self.base_rows:
            return self.bundle.label_texts[row - self.bundle.instances]
        return next(part for part in self.parts if row < part.stop).text(row)

    def _search_base(
        self, queries: Floats, *, depth: int, kind: RowKind | None, exact: bool
    ) -> tuple[Floats, Rows]:
        instances, rows = self.bundle.instances, self.base_rows
        start = instances if kind is RowKind.LABEL else 0
        stop = instances if kind is RowKind.INSTANCE else rows
        row_filter = RowFilter(start=start, stop=stop, alive=self.base_alive)
        if exact:
            return exact_search(self.bundle.keys, queries, count=depth, row_filter=row_filter)
        return self.bundle.segment.search(
            queries,
            count=depth,
            ef=self.bundle.manifest.index.ef,
            row_filter=None if kind is None and self.base_alive is None else row_filter,
        )

    def _by_part(self, rows: Rows) -> Iterator[tuple[Part, Rows]]:
        """The places in `rows` [b] of each part's own rows, where it has any."""
        if not self.parts or not (rows >= self.base_rows).any():
            return
        for part in self.parts:
            places = np.flatnonzero((rows >= part.first) & (rows < part.stop))
            if len(places):
                yield part, places


def base_dead(alive: Bits | None, bundle: Bundle) -> int:
    """How many of the bundle's rows are dead."""
    return dead_places(alive, bundle.instances + bundle.labels)
