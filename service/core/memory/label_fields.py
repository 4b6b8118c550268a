"""Metadata, dates and boosts of labels, field by field, to apply a filter to all labels at once.

Dates and `now` are microseconds. As float64, those after the year 2255 are rounded, by 32 at most.

Each label that was written has an entry: the bundle's in one store, the posted ones in another that
grows. A label that is posted again gets a new entry, and its newest one counts.

Shapes: E entries, n values of a field, C columns of V.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock

import numpy as np
from cachetools import LRUCache

from service.core.growing import Growing
from service.core.label import LabelFacts
from service.core.label_filter import COMPARED, OF_KIND, Condition, LabelFilter, MetadataValue
from service.core.tenant import Tenant
from service.core.types import Bits, Bools, Doubles, Floats, Indices, Label

_NUMBERS = (int, float)
_EMPTY = ()  # the value of a field that holds an empty list
_BOOLEANS, _NO_ITEMS = ((bool, True), (bool, False)), (tuple, _EMPTY)  # keys of codes
_KEPT_FILTERS = 128  # applied to the bundle's labels, with those of single fields
_FEW = 64  # values of a field that are looked at before all others
_LEAST_ENTRIES = 1_024  # below this, entries of replaced labels are not worth a new store


class _Field:
    """The values of one field: numbers, and codes of all others; each with its entry, ascending.

    A value is appended before its entry, so a reader that knows an entry finds its value.
    """

    def __init__(self) -> None:
        self._codes: dict[tuple[type, object], int] = {}
        self._code_entries, self._code = Growing(np.int32), Growing(np.int32)
        self._number_entries, self._number = Growing(np.int32), Growing(np.float64)

    def append(self, values: Mapping[int, MetadataValue]) -> None:
        """Append values by entry; the entries ascend."""
        numbers: list[float] = []
        codes: list[int] = []
        number_entries: list[int] = []
        code_entries: list[int] = []
        for entry, value in values.items():
            if isinstance(value, _NUMBERS) and not isinstance(value, bool):
                numbers.append(value)
                number_entries.append(entry)
                continue
            listed = (dict.fromkeys(value) or (_EMPTY,)) if isinstance(value, tuple) else (value,)
            for one in listed:
                codes.append(self._codes.setdefault((type(one), one), len(self._codes)))
                code_entries.append(entry)
        if numbers:
            self._number.extend(numbers)
            self._number_entries.extend(number_entries)
        if codes:
            self._code.extend(codes)
            self._code_entries.extend(code_entries)

    def cut(self, entries: int) -> None:
        """Forget what belongs to entries from number `entries` on."""
        for of_entries, values in (
            (self._code_entries, self._code),
            (self._number_entries, self._number),
        ):
            of_entries.drop_from(entries)
            values.cut(len(of_entries))

    def holds(self, condition: Condition, entries: int) -> Bools:
        """Return for which of the first `entries` entries a condition other than `exists` holds."""
        found = np.zeros(entries, bool)
        if condition.operator == OF_KIND:
            found[self._of_kind(condition.kind, entries)] = True
        elif condition.operator in COMPARED:
            of_entries, numbers = self.numbers(entries)
            found[of_entries[COMPARED[condition.operator](numbers, condition.values[0])]] = True
        elif condition.kind == "number":
            of_entries, numbers = self.numbers(entries)
            found[of_entries[np.isin(numbers, condition.values)]] = True
        else:
            of_entries = self._first(self._code_entries, entries)
            codes = self._code.view()[: len(of_entries)]
            known = (self._codes.get((type(value), value), -1) for value in condition.values)
            wanted = [code for code in known if code >= 0]
            equal = codes == wanted[0] if len(wanted) == 1 else np.isin(codes, wanted)
            found[of_entries[equal]] = True
        return found

    def _of_kind(self, kind: str, entries: int) -> Indices:
        """Return the entries below `entries` that have a value of this kind, also in a list."""
        if kind == "number":
            return self.numbers(entries)[0]
        of_entries = self._first(self._code_entries, entries)
        codes = self._code.view()[: len(of_entries)]
        booleans = [self._codes.get(key, -1) for key in _BOOLEANS]
        others = booleans if kind == "boolean" else [*booleans, self._codes.get(_NO_ITEMS, -1)]
        found: Indices = of_entries[np.isin(codes, others, invert=kind == "string")]
        return found

    def numbers(self, entries: int) -> tuple[Indices, Doubles]:
        """Return the entries below `entries` that have a number, and their numbers, [n] each."""
        of_entries = self._first(self._number_entries, entries)
        return of_entries, self._number.view()[: len(of_entries)]

    def present(self, entries: int) -> Bools:
        """Return which of the first `entries` entries have a value."""
        found = np.zeros(entries, bool)
        for of_entries in (self._code_entries, self._number_entries):
            found[self._first(of_entries, entries)] = True
        return found

    def is_in(self, wanted: Bools) -> bool:
        """Return whether one of the first entries that are `wanted` [E] has a value."""
        for of_entries in (self._code_entries, self._number_entries):
            known = self._first(of_entries, len(wanted))
            # Mostly, one of the first will do.
            if wanted[known[:_FEW]].any() or wanted[known[_FEW:]].any():
                return True
        return False

    @staticmethod
    def _first(of_entries: Growing[np.int32], entries: int) -> Indices:
        known = of_entries.view()
        return known[: int(np.searchsorted(known, entries))]


class FieldStore:
    """The fields of labels by entry. One writer appends; a reader passes the entries it knows."""

    def __init__(self) -> None:
        """Start without labels."""
        self._columns = Growing(np.int32)
        self._fields: dict[str, _Field] = {}
        self._starts, self._ends, self._boosts = _Field(), _Field(), _Field()

    @classmethod
    def of(cls, labels: Iterable[tuple[int, LabelFacts]]) -> FieldStore:
        """Return the store of labels, each with its column."""
        store = cls()
        store._extend(labels)
        return store

    @property
    def entries(self) -> int:
        """The number of entries."""
        return len(self._columns)

    def append(self, entry: int, column: int, label: LabelFacts) -> None:
        """Append the label at `column` as number `entry`, over what a dropped draft left there."""
        if len(self._columns) > entry:
            self._columns.cut(entry)
            for field in (*self._fields.values(), self._starts, self._ends, self._boosts):
                field.cut(entry)
        self._extend([(column, label)])

    def columns(self, entries: int) -> Indices:
        """Return the columns of the first entries, [E]."""
        return self._columns.view()[:entries]

    def holds(self, condition: Condition, *, entries: int) -> Bools:
        """Return for which of the first entries a condition holds: [E], or [1] for all alike."""
        field = self._fields.get(condition.field)
        if field is None:
            return _holds_without_fields(condition)
        if condition.operator == "exists":
            present = field.present(entries)
            return present if condition.values[0] else ~present
        return field.holds(condition, entries)

    def has(self, name: str, wanted: Bools) -> bool:
        """Return whether one of the first entries that are `wanted` [E] has a field."""
        field = self._fields.get(name)
        return field is not None and field.is_in(wanted)

    @property
    def dated(self) -> bool:
        """Whether an entry has a date."""
        return any(len(dates.numbers(self.entries)[0]) for dates in (self._starts, self._ends))

    def active(self, now: int, entries: int) -> Bools:
        """Return which of the first entries [E] have started `now` and not expired."""
        active = np.ones(entries, bool)
        for dates, hides in ((self._starts, np.greater), (self._ends, np.less_equal)):
            of_entries, seconds = dates.numbers(entries)
            active[of_entries[hides(seconds, now)]] = False
        return active

    def boosts(self, entries: int) -> Floats:
        """Return the boosts of the first entries, [E]."""
        of_entries, numbers = self._boosts.numbers(entries)
        boosts = np.ones(entries, np.float32)
        boosts[of_entries] = numbers
        return boosts

    def next_date(self, now: int, entries: int) -> float:
        """Return the first date of these entries after `now`, or infinity."""
        later = [dates.numbers(entries)[1] for dates in (self._starts, self._ends)]
        return min(float(seconds[seconds > now].min(initial=math.inf)) for seconds in later)

    def _extend(self, labels: Iterable[tuple[int, LabelFacts]]) -> None:
        """Append labels. Adding all values of a field at once takes a third of the time."""
        columns: list[int] = []
        values: defaultdict[str, dict[int, MetadataValue]] = defaultdict(dict)  # by field and entry
        starts: dict[int, MetadataValue] = {}
        ends: dict[int, MetadataValue] = {}
        boosts: dict[int, MetadataValue] = {}
        for entry, (column, label) in enumerate(labels, start=self.entries):
            columns.append(column)
            for name, value in label.metadata.items():
                values[name][entry] = value
            if label.starts_at is not None:
                starts[entry] = label.starts_at
            if label.expires_at is not None:
                ends[entry] = label.expires_at
            if label.boost != 1.0:
                boosts[entry] = label.boost
        for name, of_field in values.items():
            self._fields.setdefault(name, _Field()).append(of_field)
        self._starts.append(starts)
        self._ends.append(ends)
        self._boosts.append(boosts)
        self._columns.extend(columns)


class BundleFields:
    """The fields of a bundle's labels, and which of these passed recent filters."""

    def __init__(self, labels: Iterable[tuple[int, LabelFacts]]) -> None:
        """Index labels, each with its column, ascending."""
        self._store = FieldStore.of(labels)
        self._passing: LRUCache[LabelFilter, Bits] = LRUCache(_KEPT_FILTERS)
        self._lock = Lock()

    @property
    def columns(self) -> Indices | slice:
        """The columns of these labels, [E]."""
        columns = self._store.columns(self._store.entries)
        return slice(len(columns)) if len(columns) and columns[-1] + 1 == len(columns) else columns

    @property
    def width(self) -> int:
        """The number behind the last of these columns."""
        return int(self._store.columns(self._store.entries).max(initial=-1)) + 1

    def passing(self, wanted: LabelFilter) -> Bools:
        """Return which of these labels [E] pass."""
        entries = self._store.entries
        with self._lock:
            bits = self._passing.get(wanted)
        if bits is None:
            passing = wanted.passing(partial(self._store.holds, entries=entries))
            bits = np.packbits(np.broadcast_to(passing, entries))
            with self._lock:
                self._passing[wanted] = bits
        return np.unpackbits(bits, count=entries).astype(bool)

    def has(self, name: str, wanted: Bools) -> bool:
        """Return whether one of these labels that are `wanted` [E] has a field."""
        return self._store.has(name, wanted)

    @property
    def boosts(self) -> Floats:
        """The boosts of these labels, [E]."""
        return self._store.boosts(self._store.entries)

    @property
    def dated(self) -> bool:
        """Whether one of these labels has a date."""
        return self._store.dated

    def active(self, now: int) -> Bools:
        """Return which of these labels [E] have started `now` and not expired."""
        return self._store.active(now, self._store.entries)

    def next_date(self, now: int) -> float:
        """Return the first date of these labels after `now`, or infinity."""
        return self._store.next_date(now, self._store.entries)


@dataclass(frozen=True, kw_only=True)
class LabelFields:
    """The metadata of one view's labels: the bundle's, and the first `entries` of those posted.

    `dated` tells whether one of them has, or had, a date, and `boosted` the same of a boost.
    """

    of_bundle: BundleFields
    posted: FieldStore
    entries: int = 0
    dated: bool = False
    boosted: bool = False

    @classmethod
    def of(cls, labels: Iterable[tuple[int, LabelFacts]]) -> LabelFields:
        """Return the fields of a bundle's labels, each with its column, ascending."""
        of_bundle = BundleFields(labels)
        return cls(
            of_bundle=of_bundle,
            posted=FieldStore(),
            dated=of_bundle.dated,
            boosted=bool((of_bundle.boosts != 1.0).any()),
        )

    def put(self, label: Label, others: Mapping[int, Label]) -> LabelFields:
        """Return the fields with those of a posted label.

        `others` are the other posted labels, by column. If most entries belong to labels that were
        replaced or deleted, a new store is made.
        """
        store, entries = self.posted, self.entries
        if entries >= _LEAST_ENTRIES and entries >= 2 * len(others):
            store = FieldStore.of(others.items())
            entries = store.entries
        store.append(entries, label.index, label)
        return replace(
            self,
            posted=store,
            entries=entries + 1,
            dated=self.dated or label.starts_at is not None or label.expires_at is not None,
            boosted=self.boosted or label.boost != 1.0,
        )

    @cached_property
    def boosts(self) -> Floats:
        """The boosts of labels, if there are any; those at columns beyond the array are 1."""
        columns = self.posted.columns(self.entries)
        boosts = np.ones(max(self.of_bundle.width, int(columns.max(initial=-1)) + 1), np.float32)
        boosts[self.of_bundle.columns] = self.of_bundle.boosts
        boosts[columns] = self.posted.boosts(self.entries)  # the last entry of a column counts
        return boosts

    def passing(self, wanted: LabelFilter, columns: int) -> Bools:
        """Return the labels [C] that pass a filter, as if none was deleted."""
        without = wanted.passing(_holds_without_fields)[0]
        passing = np.full(columns, without)
        passing[self.of_bundle.columns] = self.of_bundle.passing(wanted)
        if self.entries:  # of several entries of a column, the last one is assigned
            holds = partial(self.posted.holds, entries=self.entries)
            passing[self.posted.columns(self.entries)] = wanted.passing(holds)
        return passing

    def missing(self, names: Iterable[str], present: Bools) -> tuple[str, ...]:
        """Return those of the fields that none of the labels `present` [C] has."""
        columns, places = self.posted.columns(self.entries), np.arange(self.entries)
        newest = np.full(len(present), -1, np.int64)
        newest[columns] = places  # of several entries of a column, the last one is assigned
        posted = present[columns] & (newest[columns] == places)
        of_bundle = (present & (newest < 0))[self.of_bundle.columns]
        return tuple(
            name
            for name in names
            if not (self.posted.has(name, posted) or self.of_bundle.has(name, of_bundle))
        )

    def active(self, now: int, columns: int) -> Bools:
        """Return the labels [C] that have started `now` and not expired."""
        active = np.ones(columns, bool)
        active[self.of_bundle.columns] = self.of_bundle.active(now)
        active[self.posted.columns(self.entries)] = self.posted.active(now, self.entries)
        return active

    def next_date(self, now: int) -> float:
        """Return the first date after `now`, perhaps of a replaced label, or infinity."""
        return min(self.of_bundle.next_date(now), self.posted.next_date(now, self.entries))


def labels_of(tenant: Tenant) -> LabelFilter:
    """Return the filter that a tenant's labels pass, those of several tenants included."""
    own = Condition(field=tenant.field, operator="eq", values=(tenant.value,), kind="string")
    return LabelFilter(all=(own,))


def _holds_without_fields(condition: Condition) -> Bools:
    """Return whether a condition holds for a label without metadata, [1]."""
    return np.array([condition.operator == "exists" and not condition.values[0]])
