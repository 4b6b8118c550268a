"""A bundle and its label log, read to the end: what is served, and what was clicked how often.

The memory is the service's own, so that deletions and replaced labels end as they are served. Its
live rows get no vectors, so nothing is encoded, nor fused with items.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.bundle.manifest import LearnedFacts
from service.core.changes import DeleteItem, Item, PutInstance, PutItem, UseBundle, rows_of
from service.core.errors import InvalidInput, LogError
from service.core.held_events import held_version
from service.core.label_log import LabelLog
from service.core.label_log.maintenance.recover import explained
from service.core.memory.draft import Draft
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.replay import change_of
from service.core.types import Halves
from training.datasets.learned.click_counts import ClickCounts
from training.datasets.learned.half_life import HalfLife
from training.datasets.learned.moment import Moment
from training.datasets.learned.served_items import ItemWrites


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """The memory after the newest event of the log `log`, and what its events say beside it.

    `item_writes` are those that it has of items. `unknown` counts the labels that clicks named and
    no label had. `served` is the bundle that the log asks to serve, None for the one of the start.
    """

    view: View
    log: str
    counts: ClickCounts
    item_writes: ItemWrites
    unknown: int
    served: str | None

    @property
    def learned(self) -> LearnedFacts:
        """The events that a data set of this history holds."""
        return LearnedFacts(log=self.log, version=self.view.version)


def read_history(
    bundle: Bundle,
    label_log: LabelLog,
    *,
    held: LearnedFacts | None,
    since: Moment,
    recent_from: Moment | None,
    half_life: float | None = None,
) -> History:
    """Read a log to its newest event; `held` is what the training data of the bundle has of it.

    `half_life` is that of clicks, in days; without it old clicks count as much as new ones. Another
    process may append meanwhile. Raises `LogError` for a log that is damaged or shorter than the
    bundle says, and `InvalidInput` for one whose beginning was cut.
    """
    if cut := label_log.cut():
        raise InvalidInput(
            f"{label_log.place} was cut up to event {cut}, and the clicks before it are only in"
            " snapshots, which do not count them: run `data log` before `service log --compact`",
            field="state",
        )
    try:
        counts = ClickCounts(
            since=since,
            recent_from=recent_from,
            half_life=HalfLife.of(half_life, label_log),
            held=held.version if held is not None and held.log == label_log.id else 0,
        )
        return _replayed(bundle, label_log, counts)
    except LogError as error:
        raise explained(label_log, error) from error


def _replayed(bundle: Bundle, label_log: LabelLog, counts: ClickCounts) -> History:
    """Apply the events that the bundle does not hold, and count those of all times."""
    start = held_version(bundle.manifest, label_log)
    memory = KnowledgeMemory(bundle, version=start)
    draft = Draft(replace(memory.view, fusion=None), memory.limits)
    dimension = bundle.manifest.encoder.dimension
    unknown, served, item_writes = 0, None, ItemWrites()

    def no_vectors(item: Item) -> Halves:
        return np.zeros((rows_of(item), dimension), np.float16)

    for row, event in label_log.verified():
        change = change_of(event, no_vectors)
        counts.add(change, row)
        if isinstance(change, UseBundle):
            served = change.bundle
        elif isinstance(change, PutItem | DeleteItem):
            item_writes.add(change)
        if event.sequence > start:
            draft.apply([change])
            if isinstance(change, PutInstance):
                unknown += sum(draft.labels.column(id) is None for id in change.instance.labels)
    view = memory.publish(draft)
    return History(
        view=view,
        log=label_log.id,
        counts=counts,
        item_writes=item_writes,
        unknown=unknown,
        served=served,
    )
