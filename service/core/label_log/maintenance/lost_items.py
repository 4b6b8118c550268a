"""Which writes of items a cut would lose, where the snapshot has no item memory.

A snapshot of a bundle without an item memory holds labels and clicks, but no items. Those that were
put while another bundle was served are then in the log alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.core.changes import DeleteItem, PutItem
from service.core.label_log.log import LabelLog
from service.core.label_log.rows import event_of


@dataclass(frozen=True, kw_only=True)
class LostItems:
    """The ids of items of which the newest write would be cut: a put, or a deletion."""

    put: frozenset[str]
    deleted: frozenset[str]

    def __bool__(self) -> bool:
        """Whether anything would be lost."""
        return bool(self.put or self.deleted)

    def __str__(self) -> str:
        """For example "2 items that were put and 1 deletion of an item"."""
        counts = [
            (len(self.put), "item that was put", "items that were put"),
            (len(self.deleted), "deletion of an item", "deletions of items"),
        ]
        return " and ".join(
            f"{count:,} {one if count == 1 else more}" for count, one, more in counts if count
        )


def lost_items(log: LabelLog, *, until: int) -> LostItems:
    """Find the items of which only the events up to `until` say what became of them.

    Only events of items are verified: a damaged event that a snapshot holds may be cut. Raises
    `LogCorrupt` for one of an item, and at a gap.
    """
    put: set[str] = set()
    deleted: set[str] = set()
    for row in log.rows(after=log.cut()):
        if row.kind not in (PutItem.kind, DeleteItem.kind):
            continue
        item_id = event_of(row, place=log.place).body.get("id", "")
        put.discard(item_id)
        deleted.discard(item_id)
        if row.sequence <= until:
            (put if row.kind == PutItem.kind else deleted).add(item_id)
    return LostItems(put=frozenset(put), deleted=frozenset(deleted))
