"""The knowledge memory as a log-structured store: frozen segments, live rows, published views.

A reader takes `KnowledgeMemory.view` once per request and never locks. The single writer drafts the
next view. To publish it, the writer replaces one reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.core.bundle.bundle import Bundle
from service.core.changes import Change, Posted, rows_of
from service.core.errors import MemoryFull
from service.core.index.compaction import SegmentPlan
from service.core.index.key_parts import KeyShare
from service.core.index.protocol import Segment
from service.core.items.item_memory import ItemMemory, bytes_of_memory_item
from service.core.label_filter import LabelFilter
from service.core.lexical.word_index import most_bytes
from service.core.memory.decay import PLAIN
from service.core.memory.draft import Draft, MemoryLimits, vote_of
from service.core.memory.filtered_view import FilteredViews
from service.core.memory.label_fields import LabelFields
from service.core.memory.label_table import LabelTable, bytes_of_label
from service.core.memory.part import BaseRows, LearnedRows, RowPart, bytes_of_row, seal
from service.core.memory.row_ownership import RowOwnership
from service.core.memory.rule_table import RuleTable, bytes_of_rule
from service.core.memory.shards import Scope, ShardedKeys, Shards
from service.core.memory.view import HeldKeys, View
from service.core.rules import Rule
from service.core.tenant import NAMESPACE_END, Tenant
from service.core.text_identity import IdentityLookup
from service.core.types import NewInstance, NewItem

KEPT_VERSIONS = 256  # of a shard


class KnowledgeMemory:
    """Publishes views. Threads may use `view`, the views that are made of it, and `seal`."""

    def __init__(
        self,
        bundle: Bundle,
        limits: MemoryLimits | None = None,
        *,
        version: int = 0,
        half_life: float | None = None,
        share: KeyShare | None = None,
        shards: Shards | None = None,
    ) -> None:
        """Start from a bundle that contains the events of its log up to `version`.

        Clicks that have a time lose half of their weight per `half_life`, in days; None: nothing.
        With a `share`, the memory is a shard that holds these keys. With `shards`, it is their
        front and holds none. With neither, it holds all.
        """
        self.limits, self.half_life = limits or MemoryLimits(), half_life
        self._dimension = bundle.manifest.encoder.dimension
        self._filtered = FilteredViews(half_life)
        self._recent: dict[int, View] = {}  # of a shard, by version, the oldest first
        self.shards = shards
        keys = HeldKeys(share) if shards is None else ShardedKeys(shards)
        self._set_view(
            View(
                version=version,
                base=BaseRows.of(bundle, share, searched=keys.held),
                learned=LearnedRows(first=bundle.instances + bundle.labels),
                labels=LabelTable(
                    base_ids=bundle.label_ids,
                    base_texts=bundle.label_texts,
                    base_details=bundle.label_details,
                    base_identities=IdentityLookup(bundle.label_texts),
                    columns=bundle.labels,
                    namespaced=bundle.label_ids.contains(NAMESPACE_END),
                    fields=LabelFields.of(bundle.label_details.filled()),
                ),
                ownership=RowOwnership.of_bundle(bundle),
                items=None if bundle.items is None else ItemMemory.of(bundle.items),
                rules=RuleTable.from_rules(bundle.rules, most_work=self.limits.rule_work),
                keys=keys,
            )
        )

    @property
    def view(self) -> View:
        """The newest view; a reader takes it once per request."""
        return self._view

    def at(self, version: int) -> View | None:
        """Return a shard's view of a version, or None if it is no longer kept, or not yet there."""
        return self._recent.get(version)

    def in_scope(self, view: View, scope: Scope) -> View:
        """Return one of a shard's views without the labels that its front has left out."""
        if scope.at is not None:
            view = self.active(view, scope.at)
        view = self.of_tenant(view, scope.tenant)
        for wanted in scope.filters:
            view = self.only(view, wanted)
        return view

    def only(self, view: View, wanted: LabelFilter | None) -> View:
        """Return one of this memory's views without the labels that do not pass a filter."""
        return view if wanted is None else self._filtered.of(view, wanted)

    def of_tenant(self, view: View, tenant: Tenant | None) -> View:
        """Return one of this memory's views as a tenant sees it; None sees all."""
        return view if tenant is None else self._filtered.of_tenant(view, tenant)

    def active(self, view: View, now: int) -> View:
        """Return one of these views as it answers at `now`, in microseconds.

        Labels and rules that have not started or have expired are left out, and old clicks have
        lost weight. What is returned may be filtered further by `only`.
        """
        return self._filtered.active(view, now) if self.is_timed(view) else view

    def is_timed(self, view: View) -> bool:
        """Return whether a view may answer otherwise at another time, see `active`."""
        return view.dated or (self.half_life is not None and view.has_hours)

    def draft(self) -> Draft:
        """Return a draft on top of the newest view."""
        return Draft(self._view, self.limits)

    def require_room(
        self,
        draft: Draft,
        items: Sequence[Posted],
        rules: Sequence[Rule] = (),
        *,
        growth: int = 0,
    ) -> None:
        """Raise `MemoryFull` unless `items`, `rules` and `growth` bytes of known labels fit.

        Call it before anything is logged.
        """
        limits = self.limits
        if draft.live_rows + sum(rows_of(item) for item in items) > limits.live_rows:
            raise MemoryFull(
                f"the memory holds {draft.live_rows} live rows and takes at most"
                f" {limits.live_rows} (live_rows)"
            )
        size = sum(bytes_of_item(item, dimension=self._dimension) for item in items)
        size += sum(map(bytes_of_rule, rules)) + growth
        if draft.live_bytes + size > limits.live_bytes:
            raise MemoryFull(
                f"what was learned takes {draft.live_bytes} bytes of memory, of at most"
                f" {limits.live_bytes} (live_bytes)"
            )

    def publish(self, draft: Draft) -> View:
        """Make a draft the newest view."""
        self._set_view(draft.view())
        return self._view

    def apply(self, changes: Sequence[Change], *, newest: int = 0) -> View:
        """Apply changes in the order of the log and publish them as one view; all or none apply.

        In a shard, each of the newest `KEPT_VERSIONS` is a view: fronts may read any of them.
        If `newest` is the number of a later change, the newest ones are counted back from it.
        """
        together = len(changes)
        if self._view.keys.share is not None and changes:
            last_together = max(newest, changes[-1].sequence) - KEPT_VERSIONS
            together = sum(change.sequence <= last_together for change in changes)
        for some in (changes[:together], *([change] for change in changes[together:])):
            if some:
                draft = self.draft()
                draft.apply(some)
                self.publish(draft)
        return self._view

    def _set_view(self, view: View) -> None:
        """Make a view the newest one; a shard also keeps the ones before it."""
        self._view = view
        if view.keys.share is not None:
            self._recent[view.version] = view
            if len(self._recent) > KEPT_VERSIONS:
                del self._recent[next(iter(self._recent))]

    def seal(self, plan: SegmentPlan, segment: Segment | None) -> RowPart:
        """Gather the rows of a plan, with their segment, for `attach`.

        Any thread may call this, because the content of a row never changes. It takes a tenth of a
        second for 65,000 rows.
        """
        parts = self._view.learned.within(plan.first, plan.stop)
        return seal(plan, parts, segment, dimension=self._dimension)

    def attach(self, sealed: RowPart) -> bool:
        """Replace the parts that hold a plan's rows by its segment.

        Rows that have died since they were gathered get a tombstone. If the plan was merged into a
        larger one, returns False and changes nothing. A newer plan of the same blocks is no
        obstacle: where rows die quickly, plans may be remade faster than segments are built.
        """
        learned = self._view.learned
        if not any((sealed.first, sealed.stop) == (p.first, p.stop) for p in learned.plans):
            return False
        alive = learned.alive_within(sealed.first, sealed.stop)
        learned = learned.with_sealed(sealed.with_alive(alive))
        self._set_view(replace(self._view, learned=learned))
        return True

    def attach_base(self, plan: SegmentPlan, segment: Segment | None) -> bool:
        """Search the bundle's rows through the segment of a plan; None if the plan has no rows."""
        self._set_view(replace(self._view, base=self._view.base.with_segment(plan, segment)))
        return True

    def attach_items(self, plan: SegmentPlan, segment: Segment | None) -> bool:
        """Search the posted items of a plan through its segment; None if the plan has no rows.

        Returns False and changes nothing if the plan was replaced by another one in the meantime.
        """
        items = self._view.items
        if items is None or not any(current is plan for current in items.plans):
            return False
        if plan.first > items.posted.sealed_count:
            return False  # earlier items must be attached first
        posted = items.posted.with_index(plan.first, plan.stop, plan.rows, segment)
        self._set_view(replace(self._view, items=replace(items, posted=posted)))
        return True


def bytes_of_item(item: Posted, *, dimension: int) -> int:
    """Return the most bytes of a posted label with its rows, of an instance's row, or an item."""
    if isinstance(item, NewItem):
        return bytes_of_memory_item(item.id, item.text, dimension=dimension)
    if isinstance(item, NewInstance):
        votes = len(item.labels)
        special = vote_of(item) != PLAIN or item.clicks is not None
        row = bytes_of_row(item.query, votes=votes, dimension=dimension, special=special)
        return row + most_bytes(item.query)
    texts = (item.text, *item.aliases, *item.queries)
    rows = sum(bytes_of_row(text, votes=1, dimension=dimension) for text in texts)
    return rows + sum(map(most_bytes, texts)) + bytes_of_label(item)
