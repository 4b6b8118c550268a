"""The rules of one view, found by the words of a query.

Each rule is listed under one or two keys that every query has on which it acts: all its words
joined for `exact`, one of its words otherwise. So a query looks up a few keys, however many rules
there are. Of a rule's words, the one with the fewest rules so far is its key.

The table is persistent, like the `LabelTable`: `put` and `delete` return a new one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import orjson
from rpds import HashTrieMap

from service.core.errors import UnknownRule, echoed
from service.core.lexical.words import TypedQuery
from service.core.page_cursor import FIRST_PAGE, PageCursor
from service.core.rules import Rule

_ALWAYS = ("", "")  # the key of rules without a condition
# Estimated bytes of main memory: the objects of a rule, and of each label that it names.
_BYTES_A_RULE, _BYTES_A_NAME = 2_500, 200

_Key = tuple[str, str]  # "=" and joined words, or "~" and a word


@dataclass(frozen=True, kw_only=True)
class RuleTable:
    """Rules by id, and by the keys of the queries on which they act. `size` is in bytes."""

    rules: HashTrieMap[str, tuple[Rule, tuple[_Key, ...]]] = field(default_factory=HashTrieMap)
    by_key: HashTrieMap[_Key, tuple[Rule, ...]] = field(default_factory=HashTrieMap)
    size: int = 0
    dated: int = 0  # rules with a date

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> RuleTable:
        """Return the table of some rules."""
        table = cls()
        for rule in rules:
            table = table.put(rule)
        return table

    def __len__(self) -> int:
        """Return the number of rules."""
        return len(self.rules)

    def __iter__(self) -> Iterator[Rule]:
        """Yield all rules, in no order."""
        return (rule for rule, _ in self.rules.values())

    def get(self, rule_id: str) -> Rule | None:
        """Return the rule with this id, or None."""
        found = self.rules.get(rule_id)
        return None if found is None else found[0]

    def require(self, rule_id: str) -> Rule:
        """Return the rule with this id; raises `UnknownRule` if there is none."""
        rule = self.get(rule_id)
        if rule is None:
            raise UnknownRule(f"no rule has the id {echoed(rule_id)}", field="id")
        return rule

    def put(self, rule: Rule) -> RuleTable:
        """Return a table with `rule`, instead of the one with its id."""
        others = self.delete(rule.id)
        by_key, keys = others.by_key, tuple(dict.fromkeys(others._keys(rule)))
        for key in keys:
            by_key = by_key.insert(key, (*by_key.get(key, ()), rule))
        return replace(
            others,
            rules=others.rules.insert(rule.id, (rule, keys)),
            by_key=by_key,
            size=others.size + bytes_of_rule(rule),
            dated=others.dated + rule.dated,
        )

    def delete(self, rule_id: str) -> RuleTable:
        """Return a table without the rule of this id, if there is one."""
        found = self.rules.get(rule_id)
        if found is None:
            return self
        (rule, keys), by_key = found, self.by_key
        for key in keys:
            left = tuple(other for other in by_key.get(key, ()) if other.id != rule_id)
            by_key = by_key.insert(key, left) if left else by_key.remove(key)
        return replace(
            self,
            rules=self.rules.remove(rule_id),
            by_key=by_key,
            size=self.size - bytes_of_rule(rule),
            dated=self.dated - rule.dated,
        )

    def active(self, now: float) -> RuleTable:
        """Return the rules that have started at Unix time `now` and not expired."""
        table = self
        for rule in self if self.dated else ():
            if not rule.is_active(now):
                table = table.delete(rule.id)
        return table

    def next_date(self, now: float) -> float:
        """Return the first date of a rule after Unix time `now`, or infinity."""
        dates = (date for rule in self for date in (rule.starts_at, rule.expires_at))
        return min((date for date in dates if date is not None and date > now), default=math.inf)

    def acting_on(self, *texts: str) -> list[Rule]:
        """Return the rules that act on a query with one of these texts, by their precedence."""
        acting = {rule.id: rule for rule in self.by_key.get(_ALWAYS, ())}
        for text in dict.fromkeys(texts):
            query = TypedQuery(text)
            for key in (("=", query.joined), *(("~", word) for word in query.words)):
                for rule in self.by_key.get(key, ()):
                    if rule.id not in acting and _holds(rule, query):
                        acting[rule.id] = rule
        return sorted(acting.values(), key=lambda rule: rule.precedence)

    def page(self, *, after: PageCursor = FIRST_PAGE, size: int) -> list[Rule]:
        """Return the first `size` rules after the cursor, by id."""
        above = islice(self._ids, bisect_right(self._ids, after.prefix), None)
        return [self.require(one) for one in islice(after.skip(above, id_of=str), size)]

    @cached_property
    def _ids(self) -> list[str]:
        return sorted(self.rules)

    def _keys(self, rule: Rule) -> Iterator[_Key]:
        """Yield the keys of a rule; a query on which it acts has one of them, or more."""
        if rule.query is None:
            yield _ALWAYS
            return
        typed = TypedQuery(rule.query)
        if rule.match == "exact":
            yield "=", typed.joined
            return
        # A compound is found as a whole, or by its pieces.
        for words in dict.fromkeys((tuple(typed.wholes), tuple(typed.pieces))):
            keys = [("~", word) for word in words]
            if keys:
                yield min(keys, key=lambda key: len(self.by_key.get(key, ())))


def bytes_of_rule(rule: Rule) -> int:
    """Estimate the bytes of main memory that a rule takes."""
    names = sum(1 for _ in rule.named_labels())
    return _BYTES_A_RULE + _BYTES_A_NAME * names + 4 * len(orjson.dumps(rule.document()))


def _holds(rule: Rule, query: TypedQuery) -> bool:
    assert rule.query is not None
    if rule.match == "contains":
        return query.contains(rule.query)
    match = query.match(rule.query)
    return match == "exact" or match == rule.match
