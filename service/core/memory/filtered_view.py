"""Views of some labels alone: as if every label that does not pass a filter had been deleted.

So a filtered search ranks, corrects spelling, explains and lists as a memory would that never had
the other labels. A row is left out if it votes for none of the labels that pass.

Making such a view takes about as long as a search; the newest one of each filter is kept, and the
next version's is made from what has changed since.

Shapes: C columns of V, R rows of the bundle, n rows of a part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
from cachetools import LRUCache

from service.core.bundle.bundle import Bundle
from service.core.index.protocol import Tombstones
from service.core.label_filter import Condition, LabelFilter
from service.core.memory.decay import HOUR, Decay, hour_of
from service.core.memory.label_table import LabelTable
from service.core.memory.part import BaseRows, RowPart, entries_of
from service.core.memory.view import View
from service.core.tenant import Tenant
from service.core.types import Bools, Indices, Rows

KEPT_FILTERS = 32  # of a memory, and views of tenants

_Key = tuple[Tenant | None, LabelFilter | None]  # without a filter, the view of all the tenant's


@dataclass(frozen=True, kw_only=True, eq=False)
class Filtered:
    """A filtered `view`, made of the view `of`: the labels [C] and the bundle's rows [R] it has."""

    of: View
    view: View
    matching: Bools
    passing: Bools


@dataclass(frozen=True, kw_only=True, eq=False)
class _Active:
    """The part of a view that answers from `since` until before `until`, in microseconds."""

    of: View
    made: Filtered | None  # of the active labels; None if no label has dates
    answering: View
    since: int
    until: float


class FilteredViews:
    """The filtered views of one memory. Any thread may use it."""

    def __init__(self, half_life: float | None) -> None:
        """Start empty; `half_life` is that of clicks in days, None if they do not decay."""
        self._half_life = half_life
        self._kept: LRUCache[_Key, Filtered] = LRUCache(KEPT_FILTERS)
        self._active: _Active | None = None
        self._lock = Lock()

    def active(self, view: View, now: int) -> View:
        """Return `view` without labels and rules that have not started or expired `now`.

        Old clicks have lost weight.
        """
        last, fields, made, answering = self._active, view.labels.fields, None, view
        if last is not None and last.since <= now < last.until:
            if last.of is view:
                return last.answering
            rules = last.answering.rules if last.of.rules is view.rules else view.rules.active(now)
        else:
            rules = view.rules.active(now)
        if fields.dated:
            active = _in_table(view.labels, fields.active(now, view.labels.columns))
            made = _narrowed(view, active, None if last is None else last.made)
            if active.sum() < len(view.labels):
                answering = replace(made.view, scope=replace(view.scope, at=now))
        if rules is not view.rules:
            answering = replace(answering, rules=rules)
        until = min(fields.next_date(now), view.rules.next_date(now))
        if self._half_life is not None and view.has_hours:
            decay = Decay(hour=hour_of(now), half_life=self._half_life)
            answering = replace(answering, decay=decay)
            until = min(until, float(HOUR * (decay.hour + 1)))
        self._active = _Active(of=view, made=made, answering=answering, since=now, until=until)
        return answering

    def of(self, view: View, wanted: LabelFilter) -> View:
        """Return `view` without the labels that do not pass."""
        return self._made(view, wanted, (view.labels.tenant, wanted))

    def of_tenant(self, view: View, tenant: Tenant) -> View:
        """Return `view` with the labels and rules of a tenant alone."""
        wanted = Condition(field=tenant.field, operator="eq", values=(tenant.value,), kind="string")
        return self._made(view, LabelFilter(all=(wanted,)), (tenant, None))

    def _made(self, view: View, wanted: LabelFilter, key: _Key) -> View:
        tenant, only = key
        with self._lock:
            before = self._kept.get(key)
        if before is not None and before.of is view:
            return before.view
        made = filtered(view, wanted, before)
        if only is None:
            labels, rules = made.view.labels.of(tenant), view.rules.of(tenant)
            scope = replace(view.scope, tenant=tenant)
            own = replace(made.view, labels=labels, rules=rules, missing_fields=(), scope=scope)
            made = replace(made, view=own)
        with self._lock:
            newest = self._kept.get(key)
            if newest is None or newest.of.version <= view.version:
                self._kept[key] = made
        return made.view


def filtered(view: View, wanted: LabelFilter, before: Filtered | None = None) -> Filtered:
    """Return `view` without the labels that do not pass a filter.

    `before` is what this filter left of another view of the same memory.
    """
    made = _narrowed(view, _matching(view.labels, wanted), before)
    missing = [name for name in wanted.fields if not _matching(view.labels, _having(name)).any()]
    narrowed = replace(made.view, missing_fields=tuple(missing), scope=view.scope.only(wanted))
    return replace(made, view=narrowed)


def _narrowed(view: View, matching: Bools, before: Filtered | None) -> Filtered:
    """Return `view` with the labels `matching` [C] alone; `before` is as in `filtered`."""
    known: dict[int, RowPart] = {}  # parts that need not be made again, by `id()` of the whole one
    if before is None:
        passing = passing_rows(view.bundle, matching)
        base = _base(view.base, passing)
    else:
        common = min(len(matching), len(before.matching))
        changed = np.flatnonzero(matching[:common] != before.matching[:common])
        passing = _patched(before.passing, view.bundle, matching, changed)
        same = passing is before.passing and before.of.base is view.base
        base = before.view.base if same else _base(view.base, passing)
        if not len(changed):
            known = dict(zip(map(id, before.of.parts), before.view.parts, strict=True))
    parts = tuple(known.get(id(part)) or _part(part, matching) for part in view.parts)
    made = replace(view, base=base, parts=parts, labels=view.labels.only(matching))
    return Filtered(of=view, view=made, matching=matching, passing=passing)


def passing_rows(bundle: Bundle, matching: Bools) -> Bools:
    """Return which rows of a bundle [R] vote for one of the labels `matching` [C], or more."""
    of_bundle = matching[: bundle.labels]
    passing = np.zeros(bundle.instances + bundle.labels, bool)
    passing[bundle.instances :] = of_bundle
    passing[_voters(bundle, np.flatnonzero(of_bundle))] = True
    return passing


def _matching(labels: LabelTable, wanted: LabelFilter) -> Bools:
    return _in_table(labels, labels.fields.passing(wanted, labels.columns))


def _in_table(labels: LabelTable, matching: Bools) -> Bools:
    """Return `matching` [C] without the labels that are not in the table."""
    matching[labels.deleted] = False
    if labels.kept is not None:
        kept = np.frombuffer(labels.kept, np.uint8)
        matching &= np.unpackbits(kept, count=len(matching), bitorder="little").astype(bool)
    return matching


def _having(name: str) -> LabelFilter:
    return LabelFilter(all=(Condition(field=name, operator="exists", values=(True,)),))


def _patched(passing: Bools, bundle: Bundle, matching: Bools, changed: Rows) -> Bools:
    """Return `passing_rows`, from that before some labels changed; the same array if none did."""
    changed = changed[changed < bundle.labels]
    if not len(changed):
        return passing
    passing = passing.copy()
    passing[bundle.instances + changed] = matching[changed]
    rows = np.unique(_voters(bundle, changed)).astype(np.int64)
    if len(rows):
        entries, counts = entries_of(bundle.indptr, rows)
        votes = matching[bundle.indices[entries]]
        passing[rows] = np.logical_or.reduceat(votes, np.cumsum(counts) - counts)
    return passing


def _voters(bundle: Bundle, columns: Rows) -> Indices:
    """Return the instances that vote for some labels, perhaps several times each."""
    indptr, instances = bundle.voters
    entries, _ = entries_of(indptr, columns)
    return instances[entries]


def _base(base: BaseRows, passing: Bools) -> BaseRows:
    return replace(base, dead=_with_dead(base.dead, passing, stored=base.count))


def _part(part: RowPart, matching: Bools) -> RowPart:
    """Return a part in which the rows that vote for none of the labels are dead."""
    passing, rows = np.zeros(part.dead.size, bool), part.stored_rows
    if rows:
        indptr = part.contents.indptr[: rows + 1]
        votes = matching[part.contents.indices[: indptr[-1]]]
        passing[:rows] = np.logical_or.reduceat(votes, indptr[:-1])
    return replace(part, dead=_with_dead(part.dead, passing, stored=rows))


def _with_dead(dead: Tombstones, passing: Bools, *, stored: int) -> Tombstones:
    """Return tombstones for all of `stored` rows that are dead or do not pass."""
    bits = np.packbits(passing, bitorder="little")
    if dead.alive is not None:
        bits &= dead.alive
    alive = int(np.bitwise_count(bits).sum())
    if alive == stored - dead.count:  # a search without a filter is faster
        return dead
    return Tombstones(size=dead.size, alive=bits, count=stored - alive)
