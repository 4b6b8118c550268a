"""Cuts the events that a snapshot holds from a log's beginning, while services write to it.

A snapshot of a bundle without an item memory holds labels and clicks, but no items. If items were
put while another bundle was served, only the log has them. `lost_items` finds these.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.core.changes import DeleteItem, PutItem, UseBundle
from service.core.label_log.log import LabelLog
from service.core.label_log.rows import Link, event_of

CUT_AT_ONCE = 1000  # events deleted per transaction; others write between two transactions


def compact(log: LabelLog, held: Link) -> int:
    """Cut the events up to `held`, the newest that a snapshot holds; return the last one cut.

    The newest change to another bundle and all events after it stay: a starting service reads there
    which bundle to serve. The newest event stays, too, so a slow reader can notice the cut. The log
    is whole after each step, even if the process is killed. Items that the snapshot does not hold
    are also cut: call `lost_items` first. Raises `LogReplaced` if the snapshot holds another event,
    and `LogError` if the log cannot be written.
    """
    log.require(held, knows="the snapshot holds")
    change = log.newest(UseBundle.kind)
    until = min(held.sequence, (change.sequence if change else log.last_sequence()) - 1)
    cut = log.cut()
    while cut < until:
        cut = min(cut + CUT_AT_ONCE, until)
        with log.exclusive() as appending:
            appending.cut(cut)
    log.shrink()
    return cut


@dataclass(frozen=True, kw_only=True)
class LostItems:
    """The ids of items whose newest write (a put or a deletion) would be cut."""

    put: frozenset[str]
    deleted: frozenset[str]

    def __bool__(self) -> bool:
        """Whether any item's newest write would be lost."""
        return bool(self.put or self.deleted)

    def __str__(self) -> str:
        """Return for example "2 items that were put and 1 deletion of an item"."""
        counts = [
            (len(self.put), "item that was put", "items that were put"),
            (len(self.deleted), "deletion of an item", "deletions of items"),
        ]
        return " and ".join(
            f"{count:,} {one if count == 1 else more}" for count, one, more in counts if count
        )


def lost_items(log: LabelLog, *, until: int) -> LostItems:
    """Find the items whose newest write is among the events up to `until`.

    Verifies only the events of items. Raises `LogCorrupt` for a damaged one, and at a gap.
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
