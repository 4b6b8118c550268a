"""The knowledge memory as a log-structured store: frozen segments, live rows, published views.

A reader takes `KnowledgeMemory.view` once per request and never locks. The single writer drafts the
next view and publishes it by replacing one reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.core.bundle.bundle import Bundle
from service.core.changes import Change, Item, rows_of
from service.core.errors import MemoryFull
from service.core.index.protocol import Segment
from service.core.items.fusion import OnnxFusion
from service.core.items.item_memory import ItemMemory
from service.core.memory.compaction import SegmentPlan
from service.core.memory.draft import Draft, MemoryLimits
from service.core.memory.label_table import LabelTable
from service.core.memory.memory_size import bytes_of_item
from service.core.memory.row_ownership import RowOwnership
from service.core.memory.sealed_rows import SealedRows, seal
from service.core.memory.view import View


class KnowledgeMemory:
    """Publishes views; only the single writer may use anything else than `view` and `seal`."""

    def __init__(
        self, bundle: Bundle, limits: MemoryLimits | None = None, *, version: int = 0
    ) -> None:
        """Start from a bundle that holds the events of its log up to `version`."""
        self.limits = limits or MemoryLimits()
        self._dimension = bundle.manifest.encoder.dimension
        self._view = View(
            version=version,
            bundle=bundle,
            base_alive=None,
            base_dead_rows=0,
            parts=(),
            plans=(),
            labels=LabelTable(
                base_ids=bundle.label_ids,
                base_texts=bundle.label_texts,
                base_details=bundle.label_details,
                columns=bundle.labels,
            ),
            ownership=RowOwnership.of_bundle(bundle),
            items=None if bundle.items is None else ItemMemory.of(bundle.items),
            fusion=None if bundle.items is None else OnnxFusion(bundle.items.fusion),
        )

    @property
    def view(self) -> View:
        """The newest view; a reader takes it once per request."""
        return self._view

    def draft(self) -> Draft:
        """Return a draft on top of the newest view."""
        return Draft(self._view, self.limits)

    def require_room(self, draft: Draft, items: Sequence[Item]) -> None:
        """Raise `MemoryFull` unless `items` fit; called before anything is logged."""
        limits = self.limits
        if draft.live_rows + sum(rows_of(item) for item in items) > limits.live_rows:
            raise MemoryFull(
                f"the memory holds {draft.live_rows} live rows and takes at most"
                f" {limits.live_rows} (live_rows)"
            )
        size = sum(bytes_of_item(item, dimension=self._dimension) for item in items)
        if draft.live_bytes + size > limits.live_bytes:
            raise MemoryFull(
                f"what was learned takes {draft.live_bytes} bytes of memory, of at most"
                f" {limits.live_bytes} (live_bytes)"
            )

    def publish(self, draft: Draft) -> View:
        """Make a draft the newest view."""
        self._view = draft.view()
        return self._view

    def apply(self, changes: Sequence[Change]) -> View:
        """Apply changes in the order of the log and publish them as one view, or fail entirely."""
        draft = self.draft()
        draft.apply(changes)
        return self.publish(draft)

    def seal(self, plan: SegmentPlan, segment: Segment | None) -> SealedRows:
        """Gather the rows of a plan, with their segment, for `attach`.

        Any thread may call this: it takes a tenth of a second for 65,000 rows, and what a row holds
        never changes.
        """
        parts = self._view.parts_within(plan.first, plan.stop)
        return seal(plan, parts, segment, dimension=self._dimension)

    def attach(self, sealed: SealedRows) -> bool:
        """Replace the parts that hold a plan's rows by its segment.

        Rows that have died since they were gathered get a tombstone. Returns False, and changes
        nothing, if the plan was replaced by another one meanwhile.
        """
        plan = sealed.plan
        if not any(current is plan for current in self._view.plans):
            return False
        alive = self._view.alive_rows_within(plan.first, plan.stop)
        self._view = self._view.with_sealed(sealed.with_alive(alive))
        return True

    def attach_items(self, plan: SegmentPlan, segment: Segment | None) -> bool:
        """Search the posted items of a plan through its segment, which is None if it has no rows.

        Returns False, and changes nothing, if the plan was replaced by another one meanwhile.
        """
        items = self._view.items
        if items is None or not any(current is plan for current in self._view.item_plans):
            return False
        if plan.first > items.posted.segments.stop:
            return False  # those before it come first
        posted = items.posted.with_index(plan.first, plan.stop, plan.rows, segment)
        self._view = replace(self._view, items=replace(items, posted=posted))
        return True
