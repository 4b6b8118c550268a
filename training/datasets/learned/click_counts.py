"""What the events of a label log say beside the memory that they make: weights, times, counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from service.core.changes import Change, DeleteItem, DeleteLabel, PutInstance, PutItem, PutLabel
from training.datasets.learned.half_life import HalfLife
from training.datasets.learned.moment import Moment

Weights = defaultdict[str, defaultdict[str, float]]  # label id -> query -> weight of its clicks


def _no_clicks() -> Weights:
    return defaultdict(lambda: defaultdict(float))


@dataclass(kw_only=True, eq=False)
class ClickCounts:
    """Weights of clicks by label and query, added up from `since` and the label's last deletion on.

    `new_clicks` has only those after event `held`: the training data of the bundle has counted the
    others. With a `half_life` an old click counts less than a new one. `posted` are the labels that
    were written from `since` on. `recent` are the queries of which no event is earlier than
    `recent_from`; none without it. `labels`, `deletions`, `instances`, `items` and `item_deletions`
    count the writes of all times.
    """

    since: Moment
    recent_from: Moment | None
    half_life: HalfLife | None = None
    held: int = 0
    clicks: Weights = field(default_factory=_no_clicks)
    new_clicks: Weights = field(default_factory=_no_clicks)
    posted: set[str] = field(default_factory=set)
    recent: set[str] = field(default_factory=set)
    labels: int = 0
    deletions: int = 0
    instances: int = 0
    items: int = 0
    item_deletions: int = 0
    _earlier: set[str] = field(default_factory=set)

    def add(self, change: Change, row: Any) -> None:
        """Count a change of the log's `row`; a click counts as much as it weighs."""
        if isinstance(change, PutInstance):
            self.instances += 1
            query, weight = change.instance.query, change.instance.weight
            weight *= 1.0 if self.half_life is None else self.half_life.share(row)
            self._see((query,), row)
            if self.since.is_reached(row):
                for label in set(change.instance.labels):
                    self.clicks[label][query] += weight
                    if row.sequence > self.held:
                        self.new_clicks[label][query] += weight
        elif isinstance(change, PutLabel):
            self.labels += 1
            self._see(change.label.queries, row)
            if self.since.is_reached(row):
                self.posted.add(change.label.id)
        elif isinstance(change, DeleteLabel):
            self.deletions += 1
            # A label that is posted again starts without its old clicks, as in the memory.
            self.posted.discard(change.id)
            self.clicks.pop(change.id, None)
            self.new_clicks.pop(change.id, None)
        elif isinstance(change, PutItem):
            self.items += 1
        elif isinstance(change, DeleteItem):
            self.item_deletions += 1

    def _see(self, queries: Collection[str], row: Any) -> None:
        if self.recent_from is None:
            return
        if not self.recent_from.is_reached(row):
            self._earlier.update(queries)
        else:  # events are read in order, so an earlier one has been seen already
            self.recent.update(query for query in queries if query not in self._earlier)
