"""Cuts from a log's beginning what a snapshot holds, while services go on writing to it."""

from __future__ import annotations

from service.core.changes import UseBundle
from service.core.label_log.links import Link
from service.core.label_log.log import LabelLog

CUT_AT_ONCE = 1000  # events deleted in one transaction, between which others write


def compact(log: LabelLog, held: Link) -> int:
    """Cut the events up to `held`, the newest that a snapshot holds; returns the last one cut.

    The newest change to another bundle and what came after it stay, since a start reads there which
    bundle to serve; and so does the newest event, by which a reader that is behind notices the cut.
    The log is whole after each step, and so after a kill. Items that the snapshot does not hold are
    cut, too: see `lost_items` first. Raises `LogReplaced` where the snapshot holds another event,
    and `LogError` where the log cannot be written.
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
