"""Pinned labels: the stage that puts them at the positions that rules name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from service.core.lexical.words import TypedQuery
from service.core.prediction.match_types import OfTypes
from service.core.prediction.ranking import Query, Ranking, Stage, Stages, applied, wanted
from service.core.prediction.steering import Steering
from service.core.types import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Pinned:
    """Puts labels at positions, from 0, among those that the stages `others` choose."""

    pins: Mapping[int, int]  # columns by position
    others: Sequence[Stage]
    boosts: Floats  # of all labels; those that came in have pinned ones first

    def wants(self, count: int) -> int:
        """Return the number of pinned labels and others."""
        return wanted(self.others, count)[0] + len(self.pins)

    def apply(self, ranking: Ranking, query: Query, count: int) -> Ranking:
        """Return the pinned labels in their places, with the chosen ones around them."""
        ranking = ranking.with_boosts(self.boosts)
        rest = ranking.without(frozenset(self.pins.values()))
        chosen = applied(self.others, rest, query, count)
        return ranking.with_pins(self.pins, chosen.columns, count=count)


def pinned_in(
    query: Query, steering: Steering, stages: Stages, count: int
) -> tuple[Query, Sequence[Stage]]:
    """Return a query as rules steer it, and the stages of its `count` labels.

    All labels are ranked together, so that pinned ones have their own scores and confidences.
    """
    view, pins = steering.view, steering.pins
    if not pins:
        return query._replace(view=view), stages.all
    for stage in stages.of(OfTypes):
        typed = TypedQuery(query.reading.text)
        pins = {
            position: column
            for position, column in pins.items()
            if typed.match(*view.labels.texts_at(column)) in stage.types
        }
    # At most `count` can be shown. The others answer nowhere else, as if they were hidden.
    shown = {position: pins[position] for position in nsmallest(count, pins)}
    hidden = set(steering.pins.values()).difference(shown.values())
    labels = view.labels.without(list(hidden)) if hidden else view.labels
    first = replace(view, labels=labels.first(list(shown.values())))
    last = Pinned(shown, others=stages.choosing, boosts=view.labels.boosts)
    return query._replace(view=first), (*stages.scoring, last)
