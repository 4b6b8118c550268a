"""Rules: what a merchandiser decides about the answers of some queries.

A rule has a condition on the query, and up to four consequences:

| consequence | what it does                                                                       |
|-------------|------------------------------------------------------------------------------------|
| `filter`    | only labels whose metadata pass answer the query                                   |
| `hide`      | these labels do not answer it                                                      |
| `boost`     | labels are ordered by their score times a factor; their scores stay                |
| `pin`       | these labels stand at fixed positions, whatever their scores                       |

A condition holds if the words of the rule's query are related to those of the query, folded as in
`lexical.words`:

| match      | the condition holds if the rule's words                     | specificity |
|------------|-------------------------------------------------------------|-------------|
| `exact`    | are the query's words, however they are spaced              | 3           |
| `phrase`   | are all in the query, in this order                         | 2           |
| `contains` | are all in the query, in any order                          | 1           |
| none       | a rule without a condition acts on every query              | 0           |

If several rules act on a query, all their filters must pass, all that one of them hides is hidden,
and their factors are multiplied. What is hidden is never pinned. If two pin the same label, or two
labels at one position, the more specific rule comes first, then the one with the smaller id. The
other label stands at the next position that is free.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

from service.core import times
from service.core.errors import InvalidInput
from service.core.label_filter import LabelFilter, parse
from service.core.tenant import Tenant

RuleMatch = Literal["exact", "phrase", "contains"]
SPECIFICITY: Mapping[RuleMatch | None, int] = {"exact": 3, "phrase": 2, "contains": 1, None: 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """A label, and its position in answers, from 1."""

    id: str
    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Boost:
    """The labels with these ids, or those that pass the filter, are boosted by a factor above 0."""

    factor: float
    labels: tuple[str, ...] = ()
    filter: LabelFilter | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule as posted. Without a `query` it acts on every query, and `match` is None.

    It acts from `starts_at` until before `expires_at`, microseconds; None sets no end. A rule of a
    `tenant` acts on the tenant's queries alone, and one without on those of clients without tenant.
    """

    id: str
    query: str | None = None
    match: RuleMatch | None = None
    filter: LabelFilter | None = None
    hide: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    boost: Boost | None = None
    starts_at: int | None = None
    expires_at: int | None = None
    tenant: Tenant | None = None

    @property
    def precedence(self) -> tuple[int, str]:
        """The key by which the rules that act on one query are sorted."""
        return -SPECIFICITY[self.match], self.id

    def named_labels(self) -> Iterator[tuple[str, str]]:
        """Yield the id of each label that the rule names, and the path of its field in the rule."""
        hidden = ((f"then.hide.{place}", label) for place, label in enumerate(self.hide))
        pinned = ((f"then.pin.{place}.id", pin.id) for place, pin in enumerate(self.pins))
        boosts = self.boost.labels if self.boost else ()
        boosted = ((f"then.boost.labels.{place}", label) for place, label in enumerate(boosts))
        yield from chain(hidden, pinned, boosted)

    @property
    def dates(self) -> tuple[int, ...]:
        """The dates that the rule has."""
        return tuple(date for date in (self.starts_at, self.expires_at) if date is not None)

    @property
    def work(self) -> int:
        """What the rule costs a query on which it acts: a label that it names counts 1."""
        boost = None if self.boost is None else self.boost.filter
        filters = sum(one.work for one in (self.filter, boost) if one is not None)
        return max(1, filters + sum(1 for _ in self.named_labels()))

    def document(self) -> Mapping[str, Any]:
        """Return the rule as JSON, as it is posted but for its dates, which are microseconds."""
        when = None if self.query is None else {"query": self.query, "match": self.match}
        then: dict[str, Any] = {}
        if self.hide:
            then["hide"] = list(self.hide)
        if self.pins:
            then["pin"] = [{"id": pin.id, "position": pin.position} for pin in self.pins]
        if self.boost is not None:
            wanted = self.boost.filter
            of = (
                {"labels": list(self.boost.labels)}
                if wanted is None
                else {"filter": wanted.document()}
            )
            then["boost"] = {**of, "factor": self.boost.factor}
        fields = {
            "id": self.id,
            "when": when,
            "filter": None if self.filter is None else self.filter.document(),
            "then": then or None,
            "starts_at": self.starts_at,
            "expires_at": self.expires_at,
            "tenant": None if self.tenant is None else str(self.tenant),
        }
        return {name: value for name, value in fields.items() if value is not None}


def from_document(
    document: Mapping[str, Any], *, read_filter: Callable[[Any, str], LabelFilter] | None = None
) -> Rule:
    """Return the rule that `Rule.document` wrote; `read_filter` gets a filter and its path.

    Raises `KeyError`, `TypeError` or `ValueError` for anything else.
    """
    when, then = document.get("when") or {}, document.get("then") or {}
    boost, read = then.get("boost"), read_filter or _stored_filter
    if when and when["match"] not in get_args(RuleMatch):
        raise ValueError(f"{when['match']!r} is no way to match a query")

    def filter_in(place: Mapping[str, Any], path: str) -> LabelFilter | None:
        return None if place.get("filter") is None else read(place["filter"], path)

    return Rule(
        id=document["id"],
        query=when["query"] if when else None,
        match=when["match"] if when else None,
        filter=filter_in(document, "filter"),
        hide=tuple(dict.fromkeys(then.get("hide") or ())),
        pins=tuple(Pin(id=pin["id"], position=pin["position"]) for pin in then.get("pin") or ()),
        boost=None
        if boost is None
        else Boost(
            factor=float(boost["factor"]),
            labels=tuple(dict.fromkeys(boost.get("labels") or ())),
            filter=filter_in(boost, "then.boost.filter"),
        ),
        starts_at=times.stored(document.get("starts_at")),
        expires_at=times.stored(document.get("expires_at")),
        tenant=tenant_of(document),
    )


def tenant_of(document: Mapping[str, Any]) -> Tenant | None:
    """Return the tenant of a rule's document; raises `ValueError` for a wrong one."""
    if "tenant" not in document:
        return None
    try:
        return Tenant.parse(document["tenant"])
    except InvalidInput as error:
        raise ValueError(str(error)) from error


def _stored_filter(document: Any, path: str) -> LabelFilter:
    try:
        return parse(document, at=path, most=sys.maxsize)
    except InvalidInput as error:
        raise ValueError(str(error)) from error
