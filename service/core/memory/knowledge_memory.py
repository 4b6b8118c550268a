"""The knowledge memory as a log-structured store: frozen segments, live rows, published views.

Readers take `KnowledgeMemory.view` once a request and never lock; the one writer drafts the next
view and publishes it by one reference swap.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.core.bundle.bundle import Bundle
from service.core.errors import MemoryFull
from service.core.index.protocol import Segment
from service.core.memory.changes import Change
from service.core.memory.compaction import Extent
from service.core.memory.draft import Draft, MemoryLimits, attached, covers
from service.core.memory.label_table import LabelTable
from service.core.memory.sealed_rows import seal
from service.core.memory.view import Ledger, View


class KnowledgeMemory:
    """Publishes views; everything but `view` belongs to the single writer."""

    def __init__(
        self, bundle: Bundle, limits: MemoryLimits | None = None, *, version: int = 0
    ) -> None:
        """Start from a bundle that holds the events of its log up to `version`."""
        self.limits = limits or MemoryLimits()
        self._view = View(
            version=version,
            bundle=bundle,
            base_alive=None,
            base_dead=0,
            parts=(),
            extents=(),
            labels=LabelTable(
                base_ids=bundle.label_ids,
                base_texts=bundle.label_texts,
                base_details=bundle.label_details,
                columns=bundle.labels,
            ),
            ledger=Ledger(),
        )

    @property
    def view(self) -> View:
        """The newest view; take it once a request."""
        return self._view

    def draft(self) -> Draft:
        """A draft over the newest view."""
        return Draft(self._view, self.limits)

    def room(self, draft: Draft, rows: int) -> None:
        """Raise `MemoryFull` unless `rows` more live rows fit; asked before anything is logged."""
        if draft.live_rows + rows > self.limits.live_rows:
            raise MemoryFull(
                f"the memory holds {draft.live_rows} live rows and takes at most"
                f" {self.limits.live_rows}"
            )

    def publish(self, draft: Draft) -> View:
        """Make a draft the newest view."""
        self._view = draft.view()
        return self._view

    def apply(self, changes: Sequence[Change]) -> View:
        """Apply changes in the order of the log and publish one new view, or none on failure."""
        draft = self.draft()
        draft.apply(changes)
        return self.publish(draft)

    def attach(self, extent: Extent, segment: Segment | None) -> bool:
        """Put a built segment in the place of its rows; False where it is no longer planned."""
        view = self._view
        if not any(planned is extent for planned in view.extents):
            return False
        own = [part for part in view.parts if extent.first <= part.first < extent.stop]
        sealed = seal(extent, own, segment)
        assert all(covers(sealed, part) for part in own)
        self._view = attached(view, sealed)
        return True
