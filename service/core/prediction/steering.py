"""What rules do to the answer of one query: they change the view, and they pin labels.

Filters narrow the view, and the query is then read and searched as with the same filter in the
request. Hidden labels leave its table after the search, so other labels keep their scores. Boosts
are factors in the table, and pins are put in place at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from cachetools import LRUCache

from service.core.label_filter import LabelFilter
from service.core.memory.filtered_view import filtered
from service.core.memory.view import View
from service.core.rules import Boost, Pin, Rule
from service.core.types import Bools

KEPT_STEERINGS = 8  # of a predictor

Only = Callable[[View, LabelFilter], View]  # returns a view of the labels alone that pass


@dataclass(frozen=True, kw_only=True, eq=False)
class Steering:
    """The effect of rules on one query: the `view` from which it is answered, and pinned labels.

    `pins` are the columns of pinned labels by position, from 0.
    """

    view: View
    pins: dict[int, int]


class Steerings:
    """What sets of rules do to the newest views, made once for each; threads may share it.

    Most queries have the same rules: those without condition.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._kept: LRUCache[tuple[str, ...], tuple[View, Steering]] = LRUCache(KEPT_STEERINGS)
        self._lock = Lock()

    def of(self, view: View, rules: Sequence[Rule]) -> Steering:
        """Return what rules do to an answer from `view`, which their filters have narrowed."""
        key = (str(view.rules.tenant), *(rule.id for rule in rules))
        with self._lock:
            of_view, kept = self._kept.get(key, (None, None))
        if kept is not None and of_view is view:
            return kept
        made = steering_of(view, rules)
        with self._lock:
            self._kept[key] = view, made
        return made


def narrowed_by(view: View, rules: Iterable[Rule], only: Only) -> View:
    """Return a view of the labels alone that pass the filters of rules, at least one."""
    return only(view, LabelFilter(all=tuple(rule.filter for rule in rules if rule.filter)))


def steering_of(view: View, rules: Sequence[Rule]) -> Steering:
    """Return what rules do to an answer; their filters have narrowed the view already."""
    labels = view.labels
    hidden = _columns(view, [label_id for rule in rules for label_id in rule.hide])
    if hidden:
        labels = labels.without(hidden)
    boosts = [rule.boost for rule in rules if rule.boost is not None]
    if boosts:
        labels = labels.boosted((_boosted(view, boost), boost.factor) for boost in boosts)
    view = replace(view, labels=labels) if labels is not view.labels else view
    pins = _pins(view, [pin for rule in rules for pin in rule.pins])
    return Steering(view=view, pins=pins)


def _columns(view: View, label_ids: Sequence[str]) -> list[int]:
    """Return the columns of those of the ids that the view has labels of."""
    columns = (view.labels.column(label_id) for label_id in label_ids)
    return [column for column in columns if column is not None]


def _boosted(view: View, boost: Boost) -> list[int] | Bools:
    if boost.filter is not None:
        return view.labels.fields.passing(boost.filter, view.labels.columns)
    return _columns(view, boost.labels)


def _pins(view: View, pins: Sequence[Pin]) -> dict[int, int]:
    """Return the columns of pinned labels by position, from 0; see `rules` for the precedence."""
    placed: dict[int, int] = {}
    pinned: set[int] = set()
    behind: dict[int, int] = {}  # from a taken position, one at or before the next free one
    for pin in pins:
        column = view.labels.column(pin.id)
        if column is None or column in pinned:
            continue
        position, passed = pin.position - 1, list[int]()
        while position in behind:
            passed.append(position)
            position = behind[position]
        placed[position] = column
        pinned.add(column)
        behind |= dict.fromkeys((*passed, position), position + 1)
    return placed


def only_passing(view: View, wanted: LabelFilter) -> View:
    """Return a view of the labels alone that pass; a memory keeps such views (`only`)."""
    return filtered(view, wanted).view
