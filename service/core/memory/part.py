"""The parts of the memory and their rows: keys with kinds, votes and texts.

Rows learned since the bundle lie in blocks. A block is live until it is full. Then it is sealed:
its alive rows are gathered and get a segment.

Shapes: B queries, b rows, n stored rows or votes, R rows of the bundle, d dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from sys import getsizeof
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.core.bundle.bundle import Bundle
from service.core.files.arrays import is_constant, without_repetition
from service.core.index.compaction import (
    FEW_ROWS,
    SegmentPlan,
    exceeds_dead_share,
    plan_merges,
    unsealed,
    without_dead_rows,
)
from service.core.index.device_segment import DeviceLiveVectors
from service.core.index.devices import ScanDevice
from service.core.index.exact import LiveVectors, exact_search
from service.core.index.found_rows import search_sharing
from service.core.index.key_parts import KeyShare, PartedSegment
from service.core.index.parts import Part, with_sealed
from service.core.index.protocol import RowFilter, Segment, Tombstones
from service.core.lexical.lexicon import WordPart
from service.core.lexical.word_index import FrozenWords, LiveWords, gathered
from service.core.memory.decay import PLAIN
from service.core.types import Bools, Floats, Halves, Indices, RowKind, Rows

# `test_base_rows.py` holds when a graph is planned. Commit 525630d7 measured recall and CPU time
# after deletions (loadtests/README.md, "Measured once").
REGION_ROWS = 192  # rows that may die in one region before searches there must scan
REGIONS_OF_A_GRAPH = 1_000  # larger graphs take long to build, so their regions are larger
_SAMPLED_DEAD = 32
_NEIGHBORS = 100
_DEAD_SHARE = 0.75  # of a row's neighbors: with more dead ones, the row lies in a dead region
_SHARE_IN_REGIONS = 1 / 8  # of the dead rows: with more in dead regions, a graph is planned

# Estimated bytes of main memory; `test_live_bytes.py` compares them with the growth of a process. A
# sealed row's key lies in a mapped file, which the system may drop and read again. It still counts,
# since searches need it.
BYTES_A_ROW = 500  # its objects, its entries in maps, its place in the graph
BYTES_A_VOTE = 4
BYTES_A_NUMBER = 2  # one number of a key, fp16
BYTES_OF_SPECIAL_VOTES = 1_400  # of one click: the objects, and its entries in the map of votes
BYTES_A_SPECIAL_VOTE = 8  # its weight and its hour

PLAIN_WEIGHT, PLAIN_HOUR = np.float32(PLAIN.weight), np.int32(PLAIN.hour)  # of a plain vote
POSTED = np.int64(-1)  # instead of the origin of a posted row

_Scalar = TypeVar("_Scalar", bound=np.generic)


WeightedVotes = tuple[Indices, NDArray[np.int64], Floats]  # the first three of `Votes`


class Votes(NamedTuple):
    """The votes of some rows [b], row after row: `counts` [b] of them.

    Each has a column of V, a weight, and the hour from which the weight decays, [n] each.
    """

    columns: Indices
    counts: NDArray[np.int64]
    weights: Floats
    hours: Indices


@dataclass(frozen=True, kw_only=True)
class BaseRows:
    """The bundle's N instance rows and L label rows, and the graph over them that is in use.

    Walks through a graph with many dead nodes take longer, and if all nodes of a region are dead, a
    search has to scan. So if too many rows are dead, or most rows of a region, `plan` is set: a
    graph over the remaining rows. `rebuilt` is this plan or an earlier one with its segment, which
    is None if the plan has no rows. Both are None while the bundle's own graph is good enough. A
    check for dead regions runs each time enough rows have died to form one. `checked` is the number
    of dead rows at the last check. `own` are the rows that are searched here: of a shard, its own,
    and of a front, none.
    """

    bundle: Bundle
    dead: Tombstones
    checked: int = 0
    plan: SegmentPlan | None = None
    rebuilt: tuple[SegmentPlan, Segment] | None = None
    own: Rows | None = None  # ascending; None: all

    @classmethod
    def of(
        cls, bundle: Bundle, share: KeyShare | None = None, *, searched: bool = True
    ) -> BaseRows:
        """Return the rows of a bundle; none is dead, or those of other shards than `share`."""
        rows = cls(bundle=bundle, dead=Tombstones(size=bundle.instances + bundle.labels))
        if share is None:
            return rows if searched else replace(rows, own=np.zeros(0, np.int64))
        own = bundle.rows_of(share)
        others = np.delete(np.arange(rows.count), own)
        rows = replace(rows, dead=rows.dead.with_dead(others), checked=len(others), own=own)
        return rows if bundle.manifest.key_parts else rows.planned()

    @property
    def count(self) -> int:
        """The number R = N + L of rows."""
        return self.dead.size

    @property
    def dead_rows(self) -> int:
        """The number of rows with a tombstone."""
        return self.dead.count

    def alive_rows(self) -> Rows:
        """Return the rows without a tombstone, ascending."""
        return self.dead.alive_places(self.count)

    def are_alive(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] have no tombstone."""
        return self._scanned(None).allows(rows)

    def with_tombstones(self, rows: Sequence[int]) -> BaseRows:
        """Return the same rows, with `rows` dead as well."""
        dead = [row for row in rows if row < self.count]
        return replace(self, dead=self.dead.with_dead(dead)) if dead else self

    def search(
        self, queries: Floats, *, count: int, ef: int | None, kind: RowKind | None, share: int
    ) -> tuple[Floats, Rows]:
        """Find the `count` nearest rows, as `Part.search` does; row -1 fills missing places."""
        if ef is None:
            scan = partial(exact_search, self.bundle.keys, row_filter=self._scanned(kind))
            return search_sharing(scan, queries, count=count, most=self.count, share=share)
        segment = self.bundle.segment if self.rebuilt is None else self.rebuilt[1]
        return segment.search(
            queries, count=count, ef=ef, row_filter=self._filters[kind], share=share
        )

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] are instance rows."""
        return rows < self.bundle.instances

    def votes(self, rows: Rows) -> Votes:
        """Return the votes of `rows` [b].

        A label's row votes only for its own column (the identity block of V), with weight 1.
        """
        bundle, instances = self.bundle, self.is_instance(rows)
        entries, of_instances = entries_of(bundle.indptr, rows[instances])
        counts = np.ones(len(rows), np.int64)
        counts[instances] = of_instances
        entered = np.repeat(instances, counts)  # [n]
        columns, weights = np.empty(len(entered), np.int32), np.ones(len(entered), np.float32)
        hours = np.full(len(entered), PLAIN_HOUR)
        columns[entered] = bundle.indices[entries]
        columns[~entered] = rows[~instances] - bundle.instances
        weights[entered] = bundle.vote_weights[entries]
        hours[entered] = bundle.vote_hours[entries]
        return Votes(columns, counts, weights, hours)

    def are_plain(self, votes: Votes) -> bool:
        """Return whether votes of these rows weigh 1 because the bundle has no weights."""
        return is_constant(self.bundle.vote_weights)

    @property
    def has_hours(self) -> bool:
        """Whether the weight of a vote decays."""
        return not is_constant(self.bundle.vote_hours)

    @property
    def words(self) -> WordPart:
        """The words of the rows' texts."""
        bundle = self.bundle
        return WordPart(index=bundle.words, rows=self.count, dead=self.dead, posted=bundle.posted)

    def text(self, row: int) -> str:
        """Return the text that was encoded as the row's key."""
        instances = self.bundle.instances
        if row < instances:
            return self.bundle.instance_texts[row]
        return self.bundle.label_texts[row - instances]

    def vectors(self, rows: Rows) -> Halves:
        """Return the keys [b, d] of `rows` [b].

        They are read from the index, which is in memory. Pages of `keys` would be a second copy.
        """
        return self.bundle.segment.vectors(rows)

    def spare_deaths(self) -> float:
        """Return how many more rows may die before `reconsidered` has to be called.

        Infinite on a device, because it scans all rows, and if no row is left.
        """
        if self.bundle.device is not None or not self._indexed:
            return math.inf
        spare = exceeds_dead_share(self._indexed) - self._dead_in_graph
        if self._indexed < FEW_ROWS:  # so few rows are scanned
            return spare
        region = max(REGION_ROWS, self._indexed // REGIONS_OF_A_GRAPH)
        return min(spare, self.checked + region - self.dead_rows)

    def reconsidered(self) -> BaseRows:
        """Return the same rows, with a plan for a new graph if too many of this one's are dead."""
        if self.spare_deaths() > 0:
            return self
        if self._dead_in_graph >= exceeds_dead_share(self._indexed) or self._has_dead_region():
            return self.planned()
        return replace(self, checked=self.dead_rows)

    def planned(self) -> BaseRows:
        """Return the same rows, with a plan for a graph over the alive ones."""
        plan = SegmentPlan(first=0, stop=self.count, level=0, rows=self.alive_rows())
        return replace(self, plan=plan, checked=self.dead_rows)

    def with_segment(self, plan: SegmentPlan, segment: Segment | None) -> BaseRows:
        """Return the same rows, to be searched through the segment of a plan."""
        parts = [] if segment is None else [(plan.rows, segment)]
        dimension = self.bundle.manifest.encoder.dimension
        searched = PartedSegment(parts, rows=self.count, dimension=dimension)
        return replace(self, rebuilt=(plan, searched))

    @property
    def _indexed(self) -> int:
        """The number of rows in the newest graph, whether built or only planned."""
        if self.plan is not None:
            return len(self.plan.rows)
        return self.count if self.own is None else len(self.own)

    @property
    def _dead_in_graph(self) -> int:
        return self._indexed - (self.count - self.dead_rows)

    def _has_dead_region(self) -> bool:
        """Return whether many dead rows of the newest graph have mostly dead neighbors.

        Only neighbors of the row's own kind count, because a search may be for one kind alone. They
        are found through the bundle's own graph, which every process has.
        """
        own = np.arange(self.count) if self.own is None else self.own
        indexed = own if self.plan is None else self.plan.rows
        alive = self._scanned(None).allows(indexed)
        state = np.zeros(self.count, np.int8)  # 1: dead but in the newest graph, 2: alive
        state[indexed] = 1 + alive
        dead = indexed[~alive]
        sampled = dead[:: -(-len(dead) // _SAMPLED_DEAD)]
        _, neighbors = self.bundle.segment.search(
            self.bundle.keys[sampled].astype(np.float32),
            count=_NEIGHBORS,
            ef=self.bundle.manifest.index.ef,
            row_filter=None,
        )
        instances = self.bundle.instances
        same_kind = (neighbors < instances) == (sampled < instances)[:, None]  # [B, b]
        states = np.where(same_kind & (neighbors >= 0), state[neighbors], 0)
        known, dead_neighbors = (states > 0).sum(axis=1), (states == 1).sum(axis=1)  # [B]
        in_region = dead_neighbors > _DEAD_SHARE * np.maximum(known, 1)
        return bool(in_region.mean() >= _SHARE_IN_REGIONS)

    def _scanned(self, kind: RowKind | None) -> RowFilter:
        """The filter for a kind of rows, over all rows of the bundle."""
        instances = self.bundle.instances
        return RowFilter(
            start=instances if kind is RowKind.LABEL else 0,
            stop=instances if kind is RowKind.INSTANCE else self.count,
            alive=self.dead.alive,
        )

    @cached_property
    def _filters(self) -> dict[RowKind | None, RowFilter | None]:
        """The filter for each kind of rows; None: all pass."""
        kinds = (None, RowKind.INSTANCE, RowKind.LABEL)
        filters: dict[RowKind | None, RowFilter | None]
        filters = {kind: self._scanned(kind) for kind in kinds}
        return filters if self.dead.count else {**filters, None: None}


def bytes_of_row(text: str, *, votes: int, dimension: int, special: bool = False) -> int:
    """Return the bytes of one row without its words: its key of `dimension`, text and votes.

    `special` votes have a weight or an hour.
    """
    own = BYTES_OF_SPECIAL_VOTES + BYTES_A_SPECIAL_VOTE * votes if special else 0
    key = BYTES_A_NUMBER * dimension
    return BYTES_A_ROW + key + BYTES_A_VOTE * votes + getsizeof(text) + own


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRow:
    """A row to append: its text, the columns of V that it votes for, and its key [d].

    `weights` are the votes' weights, and `hours` those from which they decay; without them, votes
    are plain. `origin` is the bundle's training row that this row replaces, or -1 for a posted row.
    A `foreign` row is another shard's, whether or not its key is known here.
    """

    kind: RowKind
    text: str
    votes: Indices
    vector: Halves
    weights: Sequence[float] = ()
    hours: Sequence[int] = ()
    origin: int = int(POSTED)
    foreign: bool = False

    @property
    def size(self) -> int:
        """The bytes of main memory that the row takes without its words."""
        return bytes_of_row(
            self.text,
            votes=len(self.votes),
            dimension=len(self.vector),
            special=any(weight != PLAIN_WEIGHT for weight in self.weights)
            or any(hour != PLAIN_HOUR for hour in self.hours),
        )


@dataclass(kw_only=True, eq=False)
class RowContents:
    """The kinds, votes and texts of rows, by place, and the words of the texts.

    The row at place p votes for the columns `indices[indptr[p] : indptr[p + 1]]`. `weights` are the
    weights of all votes, and `hours` those from which they decay. `origins` are the rows' origins
    as in `NewRow`.
    """

    instances: Bools
    indptr: NDArray[np.int64]
    indices: Indices
    texts: Sequence[str]
    words: FrozenWords | LiveWords
    weights: Floats
    hours: Indices
    origins: Rows


class LiveContents(RowContents):
    """Contents that one writer appends to, in arrays with room for more."""

    texts: list[str]
    words: LiveWords

    def __init__(self, capacity: int) -> None:
        """Reserve `capacity` rows."""
        super().__init__(
            instances=np.zeros(capacity, bool),
            indptr=np.zeros(capacity + 1, np.int64),
            indices=np.zeros(capacity, np.int32),
            texts=[],
            words=LiveWords(),
            weights=np.zeros(capacity, np.float32),
            hours=np.zeros(capacity, np.int32),
            origins=np.zeros(capacity, np.int64),
        )

    def write(self, start: int, rows: Sequence[NewRow]) -> None:
        """Write rows at `start`, which is the number of rows that the newest view counts.

        This overwrites rows that a dropped draft left behind `start`. No published view counts
        those.
        """
        stop = start + len(rows)
        self.instances[start:stop] = [row.kind is RowKind.INSTANCE for row in rows]
        ends = self.indptr[start] + np.cumsum([len(row.votes) for row in rows])
        self.indptr[start + 1 : stop + 1] = ends
        votes = slice(self.indptr[start], self.indptr[stop])
        if votes.stop > len(self.indices):
            self.indices = np.resize(self.indices, 2 * votes.stop)
            self.weights = np.resize(self.weights, 2 * votes.stop)
            self.hours = np.resize(self.hours, 2 * votes.stop)
        self.indices[votes] = np.concatenate([row.votes for row in rows])
        self.weights[votes], self.hours[votes] = PLAIN_WEIGHT, PLAIN_HOUR
        for row, first in zip(rows, self.indptr[start:stop].tolist(), strict=True):
            self.weights[first : first + len(row.weights)] = row.weights
            self.hours[first : first + len(row.hours)] = row.hours
        self.origins[start:stop] = [row.origin for row in rows]
        self.texts[start:] = [row.text for row in rows]
        self.words.write(start, self.texts[start:])


@dataclass(frozen=True, kw_only=True, eq=False)
class RowPart(Part):
    """A part whose rows have contents. `stored_bytes` estimates the main memory that it takes."""

    contents: RowContents
    stored_bytes: int = 0

    def of_kind(self, kind: RowKind) -> Bools:
        """Return which stored rows [n] are of a kind."""
        instances = self.contents.instances[: self.stored_rows]
        return np.asarray(instances == (kind is RowKind.INSTANCE))

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] are instance rows."""
        return self.contents.instances[self.places(rows)]

    def votes(self, rows: Rows) -> Votes:
        """Return the votes of `rows` [b]."""
        contents = self.contents
        entries, counts = entries_of(contents.indptr, self.places(rows))
        return Votes(
            contents.indices[entries], counts, contents.weights[entries], contents.hours[entries]
        )

    def are_plain(self, votes: Votes) -> bool:
        """Return whether votes of these rows weigh 1."""
        return bool((votes.weights == PLAIN_WEIGHT).all())

    @cached_property
    def has_hours(self) -> bool:
        """Whether the weight of a stored row's vote decays."""
        hours = self.contents.hours[: self.contents.indptr[self.stored_rows]]
        return bool((hours != PLAIN_HOUR).any())

    def origins(self, rows: Rows) -> Rows:
        """Return the origins of `rows` [b], see `NewRow`."""
        return self.contents.origins[self.places(rows)]

    @property
    def words(self) -> WordPart:
        """The words of the stored rows' texts."""
        return WordPart(
            index=self.contents.words,
            rows=self.stored_rows,
            dead=self.dead,
            first=self.first,
            numbers=self.rows,
            posted=self.posted,
        )

    @cached_property
    def posted(self) -> Rows | None:
        """The places of the posted rows, or None if all rows were posted."""
        posted = self.contents.origins[: self.stored_rows] < 0
        return None if posted.all() else np.flatnonzero(posted)

    def text(self, row: int) -> str:
        """Return the text that was encoded as the row's key."""
        return self.texts(np.array([row]))[0]

    def texts(self, rows: Rows) -> list[str]:
        """Return the texts [b] of `rows` [b]; faster than calling `text` for each."""
        texts = self.contents.texts
        return [texts[place] for place in self.places(rows).tolist()]


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveRows(RowPart):
    """The newest rows: the filled first part of a block of `capacity` rows."""

    live: LiveVectors | DeviceLiveVectors
    contents: LiveContents
    capacity: int
    word_bytes: int = 0  # of `stored_bytes`, those of the words

    @classmethod
    def block(
        cls, *, first: int, capacity: int, dimension: int, device: ScanDevice | None = None
    ) -> LiveRows:
        """Return a block without rows; `device` searches it, if given.

        `first` is the number that its first row will have.
        """
        live = (
            LiveVectors(capacity=capacity, dimension=dimension)
            if device is None
            else DeviceLiveVectors(device, capacity=capacity, dimension=dimension)
        )
        return cls(
            first=first,
            stop=first,
            dead=Tombstones(size=capacity),
            live=live,
            contents=LiveContents(capacity),
            capacity=capacity,
        )

    @property
    def room(self) -> int:
        """The number of rows that can still be appended."""
        return self.capacity - self.stored_rows

    def append(self, rows: Sequence[NewRow]) -> LiveRows:
        """Write at most `room` rows behind the present ones; return the part that counts them."""
        self.contents.write(self.stored_rows, rows)
        self.live.write(self.stored_rows, np.stack([row.vector for row in rows]))
        words = self.contents.words.size  # words of dropped drafts take memory, too
        size = self.stored_bytes - self.word_bytes + words + sum(row.size for row in rows)
        return replace(self, stop=self.stop + len(rows), stored_bytes=size, word_bytes=words)


@dataclass(frozen=True, kw_only=True)
class LearnedRows:
    """The rows from number `first` on, in `parts`, in order of their numbers.

    `plans` say which of them belong in one segment.
    """

    first: int
    parts: tuple[RowPart, ...] = ()
    plans: tuple[SegmentPlan, ...] = ()

    @property
    def stored_rows(self) -> int:
        """The number of stored rows, including sealed and dead ones."""
        return sum(part.stored_rows for part in self.parts)

    @property
    def sealed_rows(self) -> int:
        """The number of rows in segments, including dead ones."""
        return sum(part.stored_rows for part in self.parts if part.sealed)

    @property
    def dead_rows(self) -> int:
        """The number of rows that were replaced or deleted and are still stored."""
        return sum(part.dead_rows for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """The estimated main memory of the rows."""
        return sum(part.stored_bytes for part in self.parts)

    def within(self, first: int, stop: int) -> list[RowPart]:
        """Return the parts that lie entirely within [first, stop)."""
        return [part for part in self.parts if first <= part.first and part.stop <= stop]

    def alive_within(self, first: int, stop: int) -> Rows:
        """Return the rows without a tombstone in parts that lie within [first, stop)."""
        rows = [part.alive_rows() for part in self.within(first, stop)]
        return np.concatenate([np.zeros(0, np.int64), *rows])

    def unsealed_plans(self) -> Iterator[SegmentPlan]:
        """Yield the plans whose segment is not attached yet."""
        return unsealed(self.plans, self.parts)

    def spare_deaths(self) -> float:
        """Return how many more rows may die before a plan must be made again.

        Plans of few rows wait for the next full block; otherwise they would be remade too often.
        """
        spare = []
        for plan in self.plans:
            if len(plan.rows) >= FEW_ROWS:
                parts = self.within(plan.first, plan.stop)
                alive = sum(part.stored_rows - part.dead_rows for part in parts)
                spare.append(exceeds_dead_share(len(plan.rows)) - (len(plan.rows) - alive))
        return min(spare, default=math.inf)

    def planned(self, *, fan_out: int) -> LearnedRows:
        """Return the rows with plans for full blocks, and new plans if too many rows have died."""
        planned = self.plans[-1].stop if self.plans else self.first
        full_blocks = [
            (part.first, part.stop)
            for part in self.parts
            if isinstance(part, LiveRows) and not part.room and part.first >= planned
        ]
        if not full_blocks:
            return replace(self, plans=without_dead_rows(self.plans, self.alive_within))
        plans = plan_merges(self.plans, full_blocks, alive_rows=self.alive_within, fan_out=fan_out)
        return replace(self, plans=plans)

    def with_sealed(self, sealed: RowPart) -> LearnedRows:
        """Return the rows with one sealed part instead of the parts that held its rows."""
        return replace(self, parts=with_sealed(self.parts, sealed))

    def with_tombstones(self, rows: Sequence[int]) -> LearnedRows:
        """Return the rows, with those of these numbers dead as well."""
        return replace(self, parts=tuple(part.with_tombstones(rows) for part in self.parts))

    def with_rows(self, rows: Sequence[NewRow], bundle: Bundle, *, block_rows: int) -> LearnedRows:
        """Write rows into the last block, then into new blocks of `block_rows` when it is full."""
        parts = list(self.parts)
        while rows:
            last = parts[-1] if parts else None
            if not isinstance(last, LiveRows) or not last.room:
                last = LiveRows.block(
                    first=last.stop if last else self.first,
                    capacity=block_rows,
                    dimension=bundle.manifest.encoder.dimension,
                    device=bundle.device,
                )
                parts.append(last)
            parts[-1] = last.append(rows[: last.room])
            rows = rows[last.room :]
        return replace(self, parts=tuple(parts))


def seal(
    plan: SegmentPlan, parts: Sequence[RowPart], segment: Segment | None, *, dimension: int
) -> RowPart:
    """Gather a plan's rows from the `parts` that hold them now, and return them with their segment.

    If a row was replaced or deleted since the plan was made, it is in the segment, with a
    tombstone. No part may reach beyond the plan. Raises `ValueError` if a row of the plan is in
    none of `parts`.
    """
    pieces = [
        (part, plan.rows[(plan.rows >= part.first) & (plan.rows < part.stop)]) for part in parts
    ]
    if sum(len(rows) for _, rows in pieces) != len(plan.rows):
        raise ValueError("the parts do not hold all rows of the plan")
    votes = joined([part.votes(rows) for part, rows in pieces])
    texts = tuple(text for part, rows in pieces for text in part.texts(rows))
    origins = _joined([part.origins(rows) for part, rows in pieces], np.int64)
    words = gathered([(part.contents.words, part.places(rows)) for part, rows in pieces])
    special = np.zeros(len(votes.counts), bool)
    others = (votes.weights != PLAIN_WEIGHT) | (votes.hours != PLAIN_HOUR)
    special[np.repeat(np.arange(len(votes.counts)), votes.counts)[others]] = True
    sealed = RowPart(
        first=plan.first,
        stop=plan.stop,
        rows=plan.rows,
        segment=segment,
        dead=Tombstones(size=len(plan.rows)),
        contents=RowContents(
            instances=_joined([part.is_instance(rows) for part, rows in pieces], np.bool_),
            indptr=np.concatenate([np.zeros(1, np.int64), np.cumsum(votes.counts)]),
            indices=votes.columns,
            texts=texts,
            words=words,
            weights=without_repetition(votes.weights, PLAIN_WEIGHT),
            hours=without_repetition(votes.hours, PLAIN_HOUR),
            origins=without_repetition(origins, POSTED),
        ),
        stored_bytes=words.size
        + sum(
            bytes_of_row(text, votes=count, dimension=dimension, special=has_special)
            for text, count, has_special in zip(
                texts, votes.counts.tolist(), special.tolist(), strict=True
            )
        ),
    )
    return sealed.with_alive(_joined([part.alive_rows() for part in parts], np.int64))


def joined(votes: Sequence[Votes]) -> Votes:
    """Join the votes of several groups of rows, one group after the other."""
    return Votes(
        _joined([one.columns for one in votes], np.int32),
        _joined([one.counts for one in votes], np.int64),
        _joined([one.weights for one in votes], np.float32),
        _joined([one.hours for one in votes], np.int32),
    )


def _joined(pieces: Iterable[NDArray[_Scalar]], dtype: type[_Scalar]) -> NDArray[_Scalar]:
    return np.concatenate([np.zeros(0, dtype), *pieces])


def entries_of(indptr: NDArray[np.int64], places: Rows) -> tuple[Rows, NDArray[np.int64]]:
    """Return the positions [n] of entries of rows `places` [b] of a CSR matrix, and counts [b]."""
    starts = indptr[places]
    counts = np.asarray(indptr[places + 1] - starts, np.int64)
    ends = np.cumsum(counts)
    # An entry's position is the start of its row plus its place within the row.
    entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
    return entries, counts
