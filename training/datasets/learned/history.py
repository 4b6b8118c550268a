"""Reads a bundle and its whole label log: the memory that is served, and the counts of clicks.

The service's own code applies the events, so deletions and replaced labels end up as served. Live
rows get no vectors, so nothing is encoded or fused with items.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.bundle.manifest import LearnedFacts
from service.core.changes import (
    Change,
    DeleteInstance,
    DeleteItem,
    DeleteLabel,
    Posted,
    PutInstance,
    PutItem,
    PutLabel,
    UseBundle,
    rows_of,
)
from service.core.errors import InvalidInput, LogError
from service.core.label_log import LabelLog
from service.core.label_log.maintenance import explained
from service.core.memory.decay import PLAIN, Vote, is_late, share_left
from service.core.memory.draft import Draft, vote_of
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.replay import change_of, held_version
from service.core.times import SECOND
from service.core.types import Halves, NewInstance
from training.datasets.pair_weights import DAY

Weights = defaultdict[str, defaultdict[str, float]]  # label id -> query -> weight of its clicks

_MOMENTS = (
    "a date or time (2026-11-30, 2026-11-30T08:00+01:00; UTC where no zone is given), Unix seconds"
    " after an @ (@1796000000), or the number of an event (1200)"
)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A point in a log, given by the Unix time `seconds` or by the number of an event."""

    sequence: int = 0
    seconds: float = -math.inf

    @classmethod
    def parse(cls, text: str, *, option: str) -> Self:
        """Parse the value of a user's `option`; raises `InvalidInput`, which names the option."""
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return cls(sequence=int(text))
        try:
            if text.startswith("@"):
                seconds = float(text[1:])
            else:
                time = datetime.fromisoformat(text)
                seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            raise InvalidInput(f"{option} must be {_MOMENTS}, not {text!r}")
        return cls(seconds=seconds)

    def is_reached(self, row: Any) -> bool:
        """Whether the event of a log's `row` was written at this moment or later."""
        return bool(row.sequence >= self.sequence and row.written >= self.seconds)


def _no_clicks() -> Weights:
    return defaultdict(lambda: defaultdict(float))


@dataclass(kw_only=True, eq=False)
class ClickCounts:
    """Summed weights of clicks by label and query, since `since` and the label's last deletion.

    A negative pair or an unlearned one starts at 0 again.

    With a `half_life` in days, a click's weight is multiplied by 0.5 ** (age / half_life). Its age
    is counted from its own time, or when it was written, to the Unix time `newest`.

    Attributes:
        new_clicks: Clicks after event `held`; the bundle's training data includes earlier ones.
        unlearned: Pairs (query, label) that were unlearned after event `held`.
        posted: Labels that were posted since `since`.
        recent: Queries whose first event is at `recent_from` or later; empty if that is None.
        written: The number of changes of each kind in the whole log.
        items: The newest text of each item; None if the item was deleted.
    """

    since: Moment
    recent_from: Moment | None
    half_life: float | None = None
    newest: float = 0.0
    held: int = 0
    clicks: Weights = field(default_factory=_no_clicks)
    new_clicks: Weights = field(default_factory=_no_clicks)
    unlearned: set[tuple[str, str]] = field(default_factory=set)
    posted: set[str] = field(default_factory=set)
    recent: set[str] = field(default_factory=set)
    written: Counter[type[Change]] = field(default_factory=Counter)
    items: dict[str, str | None] = field(default_factory=dict)
    _earlier: set[str] = field(default_factory=set)
    # label id -> query -> the vote of its newest click
    _newest: defaultdict[str, dict[str, Vote]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, change: Change, row: Any) -> None:
        """Count the change that the log has in `row`."""
        self.written[type(change)] += 1
        if isinstance(change, PutInstance):
            self._see((change.instance.query,), row)
            self._add_clicks(change.instance, row)
        elif isinstance(change, DeleteInstance):
            self._forget(change.query, change.labels)
            if change.trained and row.sequence > self.held:
                self.unlearned.update((change.query, label) for label in change.labels)
        elif isinstance(change, PutLabel):
            self._see(change.label.queries, row)
            if self.since.is_reached(row):
                self.posted.add(change.label.id)
        elif isinstance(change, DeleteLabel):
            # A label that is posted again starts without its old clicks, as in the memory.
            self.posted.discard(change.id)
            for of_labels in (self.clicks, self.new_clicks, self._newest):
                of_labels.pop(change.id, None)
        elif isinstance(change, PutItem):
            self.items[change.item.id] = change.item.text
        elif isinstance(change, DeleteItem):
            self.items[change.id] = None

    def _add_clicks(self, instance: NewInstance, row: Any) -> None:
        at = row.written if instance.at is None else instance.at / SECOND
        count = instance.weight if instance.clicks is None else instance.clicks
        query, weight, vote = instance.query, count * self._share(at), vote_of(instance)
        for label in set(instance.labels):
            known = self._newest[label].get(query, PLAIN)
            late = is_late(vote, known=known)
            if late and min(weight, known.weight) < 0:
                continue  # one of the two ends the other, and the newer one holds
            if weight < 0:
                self._forget(query, (label,))
            elif self.since.is_reached(row):
                self.clicks[label][query] += weight
                if row.sequence > self.held:
                    self.new_clicks[label][query] += weight
            if not late:
                self._newest[label][query] = vote

    def _forget(self, query: str, labels: Collection[str]) -> None:
        for label in labels:
            for of_labels in (self.clicks, self.new_clicks, self._newest):
                of_labels[label].pop(query, None)

    def _share(self, at: float) -> float:
        """Return the share of a click's weight that is left, `LEAST_SHARE` to 1.

        The click is from the Unix time `at`.
        """
        if self.half_life is None:
            return 1.0
        # An event that was written after `newest`, while the log was read, counts in full.
        return float(share_left(np.array((self.newest - at) / DAY / self.half_life)))

    def _see(self, queries: Collection[str], row: Any) -> None:
        if self.recent_from is None:
            return
        if not self.recent_from.is_reached(row):
            self._earlier.update(queries)
        else:  # events are read in order, so all earlier queries are known
            self.recent.update(query for query in queries if query not in self._earlier)


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """The memory after the newest event of the log `log`, and counts of the log's events.

    `unknown` counts the labels that clicks named but that did not exist. `served` is the bundle of
    the log's last reload; None without a reload, when the first bundle is still served.
    """

    view: View
    log: str
    counts: ClickCounts
    unknown: int
    served: str | None

    @property
    def learned(self) -> LearnedFacts:
        """The events that a data set made from this history includes."""
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
    """Read a log to its newest event; `held` are the events in the bundle's training data.

    `half_life` is the half-life of clicks in days; without it old clicks count as much as new ones.
    Another process may append meanwhile. Raises `LogError` for a log that is damaged or shorter
    than the bundle says, and `InvalidInput` for one whose beginning was cut.
    """
    if cut := label_log.cut():
        raise InvalidInput(
            f"{label_log.place} was cut up to event {cut}, and the clicks before it are only in"
            " snapshots, which do not count them: run `data log` before `log --compact`",
            field="state",
        )
    try:
        before_last = max(0, label_log.last_sequence() - 1)
        last = () if half_life is None else label_log.verified(after=before_last)
        counts = ClickCounts(
            since=since,
            recent_from=recent_from,
            half_life=half_life,
            newest=max((row.written for row, _ in last), default=0.0),
            held=held.version if held is not None and held.log == label_log.id else 0,
        )
        return _replayed(bundle, label_log, counts)
    except LogError as error:
        raise explained(label_log, error) from error


def _replayed(bundle: Bundle, label_log: LabelLog, counts: ClickCounts) -> History:
    """Count all events of the log, and apply those that the bundle does not hold yet."""
    start = held_version(bundle.manifest, label_log)
    memory = KnowledgeMemory(bundle, version=start)
    view = memory.view
    if view.items is not None:
        view = replace(view, items=replace(view.items, attended=0))  # there are no vectors to fuse
    draft = Draft(view, memory.limits)
    dimension = bundle.manifest.encoder.dimension
    unknown, served = 0, None

    def no_vectors(item: Posted) -> Halves:
        return np.zeros((rows_of(item), dimension), np.float16)

    for row, event in label_log.verified():
        change = change_of(event, no_vectors)
        counts.add(change, row)
        if isinstance(change, UseBundle):
            served = change.bundle
        if event.sequence > start:
            draft.apply([change])
            if isinstance(change, PutInstance):
                unknown += sum(draft.labels.column(id) is None for id in change.instance.labels)
    view = memory.publish(draft)
    return History(view=view, log=label_log.id, counts=counts, unknown=unknown, served=served)
