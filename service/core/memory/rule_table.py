"""The rules of one view, found by the words of a query.

Each rule is listed under one or two keys that every query has on which it acts: all its words
joined for `exact`, one of its words otherwise. So a query looks up a few keys, however many rules
there are. Of a rule's words, the one whose rules cost a query least so far is its key.

Under a key, rules are sorted by the date from which they do not act any more. So expired rules cost
nothing, and when a rule starts or expires, nothing has to be made again.

The rules under one key, and all that act on one query, may cost it `most_work` and
`MOST_WORDS` times that.

The table is persistent, like the `LabelTable`: `put` and `delete` return a new one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import orjson
from rpds import HashTrieMap

from service.core.errors import InvalidInput, UnknownRule, echoed
from service.core.items.persistent_sets import SortedKeys
from service.core.label_filter import CONDITION_WORK
from service.core.lexical.words import TypedQuery, in_order
from service.core.page_cursor import FIRST_PAGE, PageCursor
from service.core.rules import Rule
from service.core.tenant import Tenant

# Estimated bytes of main memory: the objects of a rule, and of each label that it names.
_BYTES_A_RULE, _BYTES_A_NAME = 2_500, 200

MOST_WORK = 10_000  # by default, of the rules that one word of a query makes act; see `Rule.work`
MOST_WORDS = 2  # so many times this work may act on one query

_ALWAYS = ""  # rules without a condition; other keys are "=" and joined words, or "~" and a word
_Key = tuple[Tenant | None, str]  # with the tenant, so that no query finds another tenant's rules


class _Entry(NamedTuple):
    """A rule with what is computed once, when it is put: what queries compare, and its work."""

    rule: Rule
    condition: TypedQuery | None
    precedence: tuple[int, str]
    work: int

    @classmethod
    def of(cls, rule: Rule) -> _Entry:
        """Prepare a rule."""
        condition = None if rule.query is None else TypedQuery(rule.query)
        return cls(rule, condition, rule.precedence, rule.work)

    @property
    def expires(self) -> float:
        """When the rule ends, or infinity."""
        return math.inf if self.rule.expires_at is None else self.rule.expires_at

    def keys(self) -> Iterator[tuple[str, ...]]:
        """Yield keys among which one is to be chosen; a query on which the rule acts has all."""
        if self.condition is None:
            yield (_ALWAYS,)
        elif self.rule.match == "exact":
            yield (f"={self.condition.joined}",)
        else:  # A compound is found as a whole, or by its pieces.
            for words in (self.condition.wholes, self.condition.pieces):
                if words:
                    yield tuple(f"~{word}" for word in words)

    def holds(self, query: TypedQuery, words: set[str]) -> bool:
        """Return whether the rule's condition holds for a query with these words."""
        condition, match = self.condition, self.rule.match
        assert condition is not None
        if match == "exact":
            return condition.joined == query.joined and bool(condition.wholes)
        wholes, pieces = condition.wholes, condition.pieces
        of_wholes = words.issuperset(wholes)
        of_pieces = of_wholes if pieces == wholes else words.issuperset(pieces)
        if match == "contains":
            return bool(wholes) and (of_wholes or of_pieces)
        if len(pieces) == 1 and of_wholes:
            return wholes[0] in query.wholes or pieces[0] in query.pieces
        in_wholes = of_wholes and in_order(wholes, query.wholes)
        ordered = in_wholes or (of_pieces and in_order(pieces, query.pieces))
        return bool(wholes) and (ordered or condition.joined == query.joined)


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """The rules under one key, by the date at which they end and by id, and their work."""

    entries: SortedKeys = field(default_factory=SortedKeys)
    work: int = 0

    def put(self, entry: _Entry) -> _Listed:
        """Return the rules with another one."""
        key = entry.expires, entry.rule.id, entry
        return _Listed(entries=self.entries.insert(key), work=self.work + entry.work)

    def delete(self, entry: _Entry) -> _Listed:
        """Return the rules without this one."""
        key = entry.expires, entry.rule.id, entry
        return _Listed(entries=self.entries.discard(key), work=self.work - entry.work)

    def unexpired(self, now: float) -> Iterator[_Entry]:
        """Yield the rules that end after `now`; some of them may not have started."""
        return (entry for _, _, entry in self.entries.above((now + 1,)))


_NOTHING = _Listed()


@dataclass(frozen=True, kw_only=True)
class RuleTable:
    """Rules by id, and by the keys of the queries on which they act. `size` is in bytes.

    The table holds the rules of all tenants. Reading finds those of one `tenant`. At Unix time
    `now`, those act that have started and not expired; if it is None, dates do not count. `dates`
    are sorted, each with its rule.
    """

    rules: HashTrieMap[_Key, tuple[_Entry, tuple[_Key, ...]]] = field(default_factory=HashTrieMap)
    by_key: HashTrieMap[_Key, _Listed] = field(default_factory=HashTrieMap)
    dates: SortedKeys = field(default_factory=SortedKeys)
    size: int = 0
    most_work: int = MOST_WORK
    now: int | None = None
    tenant: Tenant | None = None

    @classmethod
    def from_rules(cls, rules: Iterable[Rule], *, most_work: int = MOST_WORK) -> RuleTable:
        """Return the table of some rules."""
        table = cls(most_work=most_work)
        for rule in rules:
            table = table.put(rule)
        return table

    def of(self, tenant: Tenant | None) -> RuleTable:
        """Return the table as a tenant sees it."""
        return replace(self, tenant=tenant)

    def __len__(self) -> int:
        """Return the number of rules of all tenants."""
        return len(self.rules)

    def __iter__(self) -> Iterator[Rule]:
        """Yield the rules of all tenants, in no order."""
        return (entry.rule for entry, _ in self.rules.values())

    def get(self, rule_id: str) -> Rule | None:
        """Return the tenant's rule with this id, or None."""
        found = self.rules.get((self.tenant, rule_id))
        return None if found is None else found[0].rule

    def require(self, rule_id: str) -> Rule:
        """Return the tenant's rule with this id; raises `UnknownRule` if there is none."""
        rule = self.get(rule_id)
        if rule is None:
            raise UnknownRule(f"no rule has the id {echoed(rule_id)}", field="id")
        return rule

    def put(self, rule: Rule) -> RuleTable:
        """Return a table with `rule`, instead of its tenant's one with this id."""
        others, entry = self.delete(rule.id, rule.tenant), _Entry.of(rule)
        by_key, keys = others.by_key, tuple(dict.fromkeys(others._keys(entry)))
        for key in keys:
            by_key = by_key.insert(key, by_key.get(key, _NOTHING).put(entry))
        dates = others.dates
        for date in rule.dates:
            dates = dates.insert((date, str(rule.tenant), rule.id))
        return replace(
            others,
            rules=others.rules.insert((rule.tenant, rule.id), (entry, keys)),
            by_key=by_key,
            dates=dates,
            size=others.size + bytes_of_rule(rule),
        )

    def delete(self, rule_id: str, tenant: Tenant | None = None) -> RuleTable:
        """Return a table without a tenant's rule of this id, if there is one."""
        found = self.rules.get((tenant, rule_id))
        if found is None:
            return self
        (entry, keys), by_key, dates = found, self.by_key, self.dates
        for key in keys:
            left = by_key.get(key, _NOTHING).delete(entry)
            by_key = by_key.insert(key, left) if left.work else by_key.remove(key)
        for date in entry.rule.dates:
            dates = dates.discard((date, str(tenant), rule_id))
        return replace(
            self,
            rules=self.rules.remove((tenant, rule_id)),
            by_key=by_key,
            dates=dates,
            size=self.size - bytes_of_rule(entry.rule),
        )

    def at(self, now: int) -> RuleTable:
        """Return the table in which only those rules act that are active `now`."""
        return replace(self, now=now) if self.dated else self

    @property
    def dated(self) -> bool:
        """Whether a rule has a date."""
        return bool(self.dates.chunks)

    def next_date(self, now: int) -> float:
        """Return the first date of a rule after `now`, or infinity."""
        later = self.dates.above((now + 1,))
        return next((date for date, _, _ in later), math.inf)

    def require_bounded(self, rule: Rule, *, field: str, now: int) -> None:
        """Raise `InvalidInput` if the rules that one of this rule's words makes act cost too much.

        They are those that have not expired `now`.
        """
        _, keys = self.rules[rule.tenant, rule.id]
        for key in keys:
            listed = self.by_key[key]
            if listed.work <= self.most_work:
                continue
            work = sum(entry.work for entry in listed.unexpired(now))
            if work > self.most_work:
                what = f"on queries with {echoed(key[1][1:])}" if key[1] else "on every query"
                raise InvalidInput(
                    f"the rules that act {what} would take {work:,} steps, of at most"
                    f" {self.most_work:,} (rule_work): one for each label that they name, and"
                    f" {CONDITION_WORK} for each condition of a filter; delete some, or give them"
                    " conditions with rarer words",
                    field=field,
                )

    @property
    def common_work(self) -> int:
        """The work of the tenant's rules that act on every query, expired ones included."""
        return self.by_key.get((self.tenant, _ALWAYS), _NOTHING).work

    def acting_on(self, *texts: str) -> list[Rule]:
        """Return the tenant's rules that act on a query with one of these texts, by precedence.

        Raises `InvalidInput` if they cost too much.
        """
        acting = {entry.rule.id: entry for entry in self._active(_ALWAYS)}
        work, most = sum(entry.work for entry in acting.values()), MOST_WORDS * self.most_work
        for text in dict.fromkeys(texts):
            query = TypedQuery(text)
            words = query.words
            for key in (f"={query.joined}", *(f"~{word}" for word in words)):
                for entry in self._active(key):
                    if not entry.holds(query, words):
                        work += 1
                    elif entry.rule.id not in acting:
                        acting[entry.rule.id] = entry
                        work += entry.work
                if work > most:
                    raise InvalidInput(
                        f"the rules for words of the query {echoed(text)} take more than {most:,}"
                        f" steps, {MOST_WORDS} times rule_work; ask for fewer words, or delete some"
                        " rules",
                        field="queries",
                    )
        ordered = sorted(acting.values(), key=attrgetter("precedence"))
        return [entry.rule for entry in ordered]

    def _active(self, key: str) -> Iterator[_Entry]:
        """Yield the tenant's rules under a key that are active."""
        listed, now = self.by_key.get((self.tenant, key), _NOTHING), self.now
        if now is None:
            yield from listed.unexpired(-math.inf)
            return
        for entry in listed.unexpired(now):
            if entry.rule.starts_at is None or entry.rule.starts_at <= now:
                yield entry

    def page(self, *, after: PageCursor = FIRST_PAGE, size: int) -> list[Rule]:
        """Return the first `size` of the tenant's rules after the cursor, by id."""
        above = islice(self._ids, bisect_right(self._ids, after.prefix), None)
        return [self.require(one) for one in islice(after.skip(above, id_of=str), size)]

    def stored(self) -> list[Rule]:
        """Return the rules for a snapshot: all, or a tenant's own, which become those of nobody."""
        if self.tenant is None:
            return sorted(self, key=lambda rule: (str(rule.tenant), rule.id))
        return [replace(self.require(rule_id), tenant=None) for rule_id in self._ids]

    @property
    def count(self) -> int:
        """The number of the tenant's rules."""
        return len(self._ids)

    @cached_property
    def _ids(self) -> list[str]:
        return sorted(rule_id for tenant, rule_id in self.rules if tenant == self.tenant)

    def _keys(self, entry: _Entry) -> Iterator[_Key]:
        """Yield the keys of a rule; a query on which it acts has one of them, or more."""
        for names in entry.keys():
            keys = [(entry.rule.tenant, name) for name in names]
            yield min(keys, key=lambda key: self.by_key.get(key, _NOTHING).work)


def bytes_of_rule(rule: Rule) -> int:
    """Estimate the bytes of main memory that a rule takes."""
    names = sum(1 for _ in rule.named_labels())
    return _BYTES_A_RULE + _BYTES_A_NAME * names + 4 * len(orjson.dumps(rule.document()))
