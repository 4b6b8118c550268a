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
from service.core.tenant import Tenant

# Estimated bytes of main memory: the objects of a rule, and of each label that it names.
_BYTES_A_RULE, _BYTES_A_NAME = 2_500, 200

_ALWAYS = ""  # rules without a condition; other keys are "=" and joined words, or "~" and a word
_Key = tuple[Tenant | None, str]  # with the tenant, so that no query finds another tenant's rules


@dataclass(frozen=True, kw_only=True)
class RuleTable:
    """Rules by id, and by the keys of the queries on which they act. `size` is in bytes.

    The table holds the rules of all tenants. Reading finds those of one `tenant`.
    """

    rules: HashTrieMap[_Key, tuple[Rule, tuple[_Key, ...]]] = field(default_factory=HashTrieMap)
    by_key: HashTrieMap[_Key, tuple[Rule, ...]] = field(default_factory=HashTrieMap)
    size: int = 0
    dated: int = 0  # rules with a date
    tenant: Tenant | None = None

    @classmethod
    def from_rules(cls, rules: Iterable[Rule]) -> RuleTable:
        """Return the table of some rules."""
        table = cls()
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
        return (rule for rule, _ in self.rules.values())

    def get(self, rule_id: str) -> Rule | None:
        """Return the tenant's rule with this id, or None."""
        found = self.rules.get((self.tenant, rule_id))
        return None if found is None else found[0]

    def require(self, rule_id: str) -> Rule:
        """Return the tenant's rule with this id; raises `UnknownRule` if there is none."""
        rule = self.get(rule_id)
        if rule is None:
            raise UnknownRule(f"no rule has the id {echoed(rule_id)}", field="id")
        return rule

    def put(self, rule: Rule) -> RuleTable:
        """Return a table with `rule`, instead of its tenant's one with this id."""
        others = self.delete(rule.id, rule.tenant)
        by_key, keys = others.by_key, tuple(dict.fromkeys(others._keys(rule)))
        for key in keys:
            by_key = by_key.insert(key, (*by_key.get(key, ()), rule))
        return replace(
            others,
            rules=others.rules.insert((rule.tenant, rule.id), (rule, keys)),
            by_key=by_key,
            size=others.size + bytes_of_rule(rule),
            dated=others.dated + rule.dated,
        )

    def delete(self, rule_id: str, tenant: Tenant | None = None) -> RuleTable:
        """Return a table without a tenant's rule of this id, if there is one."""
        found = self.rules.get((tenant, rule_id))
        if found is None:
            return self
        (rule, keys), by_key = found, self.by_key
        for key in keys:
            left = tuple(other for other in by_key.get(key, ()) if other.id != rule_id)
            by_key = by_key.insert(key, left) if left else by_key.remove(key)
        return replace(
            self,
            rules=self.rules.remove((tenant, rule_id)),
            by_key=by_key,
            size=self.size - bytes_of_rule(rule),
            dated=self.dated - rule.dated,
        )

    def active(self, now: int) -> RuleTable:
        """Return the rules that have started `now` and not expired."""
        table = self
        for rule in self if self.dated else ():
            if not rule.is_active(now):
                table = table.delete(rule.id, rule.tenant)
        return table

    def next_date(self, now: int) -> float:
        """Return the first date of a rule after `now`, or infinity."""
        if not self.dated:
            return math.inf
        dates = (date for rule in self for date in (rule.starts_at, rule.expires_at))
        return min((date for date in dates if date is not None and date > now), default=math.inf)

    def acting_on(self, *texts: str) -> list[Rule]:
        """Return the tenant's rules that act on a query with one of these texts, by precedence."""
        acting = {rule.id: rule for rule in self.by_key.get((self.tenant, _ALWAYS), ())}
        for text in dict.fromkeys(texts):
            query = TypedQuery(text)
            for key in (f"={query.joined}", *(f"~{word}" for word in query.words)):
                for rule in self.by_key.get((self.tenant, key), ()):
                    if rule.id not in acting and _holds(rule, query):
                        acting[rule.id] = rule
        return sorted(acting.values(), key=lambda rule: rule.precedence)

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

    def _keys(self, rule: Rule) -> Iterator[_Key]:
        """Yield the keys of a rule; a query on which it acts has one of them, or more."""
        tenant = rule.tenant
        if rule.query is None:
            yield tenant, _ALWAYS
            return
        typed = TypedQuery(rule.query)
        if rule.match == "exact":
            yield tenant, f"={typed.joined}"
            return
        # A compound is found as a whole, or by its pieces.
        for words in (typed.wholes, typed.pieces):
            keys = [(tenant, f"~{word}") for word in words]
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
