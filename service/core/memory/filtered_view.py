"""Views of some labels alone: as if every label that does not pass a filter had been deleted.

So a filtered search ranks, corrects spelling, explains and lists as a memory would that never had
the other labels. A row is left out if it votes for none of the labels that pass.

Making such a view takes about as long as a search; the newest one of each filter is kept, and the
next version's is made from what has changed since.

Shapes: C columns of V, R rows of the bundle, n rows of a part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from threading import Lock

import numpy as np
from cachetools import LRUCache

from service.core.bundle.bundle import Bundle
from service.core.errors import echoed
from service.core.index.protocol import Tombstones
from service.core.label_filter import OF_KIND, Condition, LabelFilter
from service.core.memory.decay import HOUR, Decay, hour_of
from service.core.memory.label_fields import labels_of
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
    answering: View
    since: int
    until: float
    made: Filtered | None = None  # of the active labels; None if no label has dates

    def holds(self, view: View, now: int) -> bool:
        """Return whether this is the part of `view` that answers at Unix time `now`."""
        return self.of is view and self.since <= now < self.until


class FilteredViews:
    """The filtered views of one memory. Any thread may use it."""

    def __init__(self, half_life: float | None) -> None:
        """Start empty; `half_life` is that of clicks in days, None if they do not decay."""
        self._half_life = half_life
        self._kept: LRUCache[_Key, Filtered] = LRUCache(KEPT_FILTERS)
        self._active: _Active | None = None  # by dates of labels, and by decay
        self._acting: _Active | None = None  # of what that answers, by dates of rules
        self._lock = Lock()

    def active(self, view: View, now: int) -> View:
        """Return `view` without labels and rules that have not started or expired `now`.

        Old clicks have lost weight.
        """
        answering = self._with_active_labels(view, now)
        if not (answering.has_rules and answering.rules.dated):
            return answering
        last = self._acting
        if last is None or not last.holds(answering, now):
            acting = replace(answering, rules=answering.rules.at(now))
            until = answering.rules.next_date(now)
            last = _Active(of=answering, answering=acting, since=now, until=until)
            self._acting = last
        return last.answering

    def _with_active_labels(self, view: View, now: int) -> View:
        last, fields, made, answering = self._active, view.labels.fields, None, view
        if last is not None and last.holds(view, now):
            return last.answering
        if fields.dated:
            active = _in_table(view.labels, fields.active(now, view.labels.columns))
            made = _narrowed(view, active, None if last is None else last.made)
            if active.sum() < len(view.labels):
                answering = replace(made.view, scope=replace(view.scope, at=now))
        until = fields.next_date(now)
        if self._half_life is not None and view.has_hours:
            decay = Decay(hour=hour_of(now), half_life=self._half_life)
            answering = replace(answering, scope=replace(answering.scope, decay=decay))
            until = min(until, float(HOUR * (decay.hour + 1)))
        self._active = _Active(of=view, made=made, answering=answering, since=now, until=until)
        return answering

    def of(self, view: View, wanted: LabelFilter) -> View:
        """Return `view` without the labels that do not pass."""
        return self._made(view, wanted, (view.labels.tenant, wanted))

    def of_tenant(self, view: View, tenant: Tenant) -> View:
        """Return `view` with the labels and rules of a tenant alone."""
        return self._made(view, labels_of(tenant), (tenant, None))

    def _made(self, view: View, wanted: LabelFilter, key: _Key) -> View:
        tenant, only = key
        with self._lock:
            before = self._kept.get(key)
        if before is not None and before.of is view:
            return before.view
        if before is not None and _differ_in_rules(before.of, view):
            # A rule has started or expired, so the labels and rows are the same.
            own = replace(before.view, rules=view.rules.of(tenant))
            made = replace(before, of=view, view=own)
        else:
            made = self._made_anew(view, wanted, tenant, only, before)
        with self._lock:
            newest = self._kept.get(key)
            if newest is None or newest.of.version <= view.version:
                self._kept[key] = made
        return made.view

    @staticmethod
    def _made_anew(
        view: View,
        wanted: LabelFilter,
        tenant: Tenant | None,
        only: LabelFilter | None,
        before: Filtered | None,
    ) -> Filtered:
        made = filtered(view, wanted, before)
        if only is None:
            labels, rules = made.view.labels.of(tenant), view.rules.of(tenant)
            scope = replace(view.scope, tenant=tenant, warnings=())
            own = replace(made.view, labels=labels, rules=rules, scope=scope)
            made = replace(made, view=own)
        return made


def _differ_in_rules(one: View, other: View) -> bool:
    """Return whether two views are the same but for their rules."""
    names = (one.name for one in fields(View) if one.name != "rules")
    return all(getattr(one, name) is getattr(other, name) for name in names)


def filtered(view: View, wanted: LabelFilter, before: Filtered | None = None) -> Filtered:
    """Return `view` without the labels that do not pass a filter.

    `before` is what this filter left of another view of the same memory.
    """
    made = _narrowed(view, _matching(view.labels, wanted), before)
    warnings = tuple(_warnings(view.labels, wanted))
    scope = replace(view.scope.only(wanted), warnings=warnings)
    return replace(made, view=replace(made.view, scope=scope))


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
    learned = replace(view.learned, parts=parts)
    made = replace(view, base=base, learned=learned, labels=view.labels.only(matching))
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
    if labels.kept:
        kept = np.frombuffer(labels.kept, np.uint8)
        matching &= np.unpackbits(kept, count=len(matching), bitorder="little").astype(bool)
    return matching


def _warnings(labels: LabelTable, wanted: LabelFilter) -> Iterator[str]:
    """Yield a sentence for each field without a value that the filter's conditions ask for."""
    present = _in_table(labels, np.ones(labels.columns, bool))
    missing = labels.fields.missing(wanted.fields, present)
    yield from (f"no label has the field {echoed(name)}" for name in missing)
    absent = frozenset(missing)
    asked: defaultdict[tuple[str, str], list[Condition]] = defaultdict(list)  # by field and kind
    for condition in wanted.conditions():
        if condition.operator != "exists" and condition.field not in absent:
            asked[condition.field, condition.kind].append(condition)

    def has(condition: Condition) -> bool:
        return bool(_matching(labels, LabelFilter(all=(condition,))).any())

    for (name, kind), conditions in asked.items():
        of_kind = Condition(field=name, operator=OF_KIND, values=(True,), kind=kind)
        if not has(conditions[0]) and not has(of_kind):  # the first test mostly suffices
            used = dict.fromkeys(f"`{one.operator}`" for one in conditions)
            yield f"no label has a {kind} as {echoed(name)}, so {' and '.join(used)} never holds"


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
