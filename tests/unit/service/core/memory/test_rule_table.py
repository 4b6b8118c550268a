"""Rules are found by the words of a query, as if every rule were tried."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle
from service.core.errors import InvalidInput, UnknownRule
from service.core.label_filter import parse
from service.core.lexical.words import TypedQuery
from service.core.memory import filtered_view, rule_table
from service.core.memory.filtered_view import filtered
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.rule_table import RuleTable
from service.core.memory.view import View
from service.core.page_cursor import PageCursor
from service.core.rules import Pin, Rule, RuleMatch
from service.core.tenant import Tenant
from tests.support.changes import put_rule

words = st.sampled_from(["red", "T-shirt", "tshirt", "t", "shirt", "Café", "xk-44", "xk44", "44"])
texts = st.lists(words, min_size=1, max_size=4).map(" ".join)
matches = st.sampled_from(["exact", "phrase", "contains"])
conditions = st.one_of(st.tuples(st.none(), st.none()), st.tuples(texts, matches))


def rule(rule_id: str, query: str | None = None, match: RuleMatch | None = None) -> Rule:
    return Rule(id=rule_id, query=query, match=match, hide=("a",))


def acts(one: Rule, query: str) -> bool:
    """Return whether a rule acts on a query, by the table of `rules`."""
    if one.query is None:
        return True
    typed = TypedQuery(query)
    if one.match == "contains":
        return typed.contains(one.query)
    return (
        typed.match(one.query)
        in {"exact": ("exact",), "phrase": ("exact", "phrase")}[one.match or "exact"]
    )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), conditions), max_size=12),
    st.sets(st.sampled_from("abcdef")),
    st.lists(texts, min_size=1, max_size=2),
)
def test_a_query_finds_the_rules_whose_conditions_hold(
    puts: list[tuple[str, tuple[str | None, RuleMatch | None]]],
    deleted: set[str],
    queries: list[str],
) -> None:
    table, known = RuleTable(), dict[str, Rule]()
    for rule_id, condition in puts:
        known[rule_id] = rule(rule_id, *condition)
        table = table.put(known[rule_id])
    for rule_id in sorted(deleted):
        table = table.delete(rule_id)
        known.pop(rule_id, None)
    assert {one.id: one for one in table} == known and len(table) == len(known)
    acting = [one for one in known.values() if any(acts(one, query) for query in queries)]
    assert table.acting_on(*queries) == sorted(acting, key=lambda one: one.precedence)
    assert len(table.by_key) <= 2 * len(known)


@pytest.mark.parametrize(
    ("match", "query", "acting"),
    [
        ("exact", "Red T shirts", True),
        ("exact", "red tshirts", True),
        ("exact", "red t-shirts sale", False),
        ("phrase", "new red t-shirts", True),
        ("phrase", "t-shirts red", False),
        ("contains", "t-shirts in red", True),
        ("contains", "shirts red", False),
    ],
)
def test_conditions_fold_words_as_match_types_do(
    match: RuleMatch, query: str, acting: bool
) -> None:
    table = RuleTable.from_rules([rule("r", "red T-Shirts", match)])
    assert bool(table.acting_on(query)) is acting


def test_dates_decide_which_rules_are_active() -> None:
    dated = Rule(id="d", hide=("a",), starts_at=10, expires_at=20)
    table = RuleTable.from_rules([rule("always"), dated])
    assert table.dated and not table.delete("d").dated
    at = {now: [one.id for one in table.at(now).acting_on("x")] for now in (9, 10, 19, 20)}
    both = ["always", "d"]
    assert at == {9: ["always"], 10: both, 19: both, 20: ["always"]}
    assert [one.id for one in table.acting_on("x")] == both  # without a time, dates do not count
    assert (table.next_date(9), table.next_date(10)) == (10, 20)
    assert table.next_date(20) == float("inf")
    plain = RuleTable.from_rules([rule("always")])
    assert plain.at(0) is plain


moments = st.sampled_from([None, 2, 4, 6])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), conditions, moments, moments), max_size=10),
    st.sets(st.sampled_from("abcd")),
    st.lists(st.sampled_from(list(range(1, 7))), min_size=1, max_size=4),
)
def test_at_each_moment_those_act_that_have_started_and_not_expired(
    puts: list[tuple[str, tuple[str | None, RuleMatch | None], int | None, int | None]],
    deleted: set[str],
    times: list[int],
) -> None:
    """The clock may be set back."""
    table, known = RuleTable(), dict[str, Rule]()
    for rule_id, condition, starts, expires in puts:
        dates = {"starts_at": starts, "expires_at": expires}
        known[rule_id] = replace(rule(rule_id, *condition), **dates)
        table = table.put(known[rule_id])
    for rule_id in sorted(deleted):
        table = table.delete(rule_id)
        known.pop(rule_id, None)
    dates = [date for one in known.values() for date in one.dates]
    for now in times:
        acting = {
            one.id
            for one in known.values()
            if acts(one, "red t-shirt")
            and (one.starts_at or 0) <= now < (one.expires_at or float("inf"))
        }
        assert {one.id for one in table.at(now).acting_on("red t-shirt")} == acting
        assert table.next_date(now) == min([d for d in dates if d > now], default=float("inf"))


def test_pages_list_all_rules_by_id() -> None:
    table = RuleTable.from_rules([rule(f"r{number}") for number in range(7)])
    first = table.page(size=3)
    rest = table.page(after=PageCursor.behind(first[-1].id), size=9)
    assert [one.id for one in [*first, *rest]] == [f"r{number}" for number in range(7)]


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(UnknownRule, match="'x'"):
        RuleTable().require("x")
    assert RuleTable().get("x") is None


def test_size_counts_what_is_there() -> None:
    table = RuleTable().put(rule("a")).put(rule("b", "red", "exact"))
    assert table.size > RuleTable().put(rule("a")).size > 0
    assert table.delete("a").delete("b").size == 0


def test_a_query_tries_few_of_many_rules() -> None:
    """Ten thousand rules share one word; each has one of its own."""
    many = [rule(f"{number}", f"cheap brand{number}", "contains") for number in range(10_000)]
    table = RuleTable.from_rules(many)
    assert [one.id for one in table.acting_on("cheap red brand77")] == ["77"]
    assert max(listed.work for listed in table.by_key.values()) <= 2


@pytest.mark.parametrize("condition", [(None, None), ("red lamp", "phrase")])
def test_what_one_word_or_no_condition_makes_act_is_bounded(
    condition: tuple[str | None, RuleMatch | None],
) -> None:
    """Labels and conditions count; those of expired rules and of other tenants do not."""
    table = RuleTable.from_rules(most_work=50, rules=[])

    def pinning(rule_id: str, labels: int, **fields: Any) -> Rule:
        pins = tuple(Pin(id=f"{place}", position=place + 1) for place in range(labels))
        return replace(rule(rule_id, *condition), hide=(), pins=pins, **fields)

    def refused(one: Rule) -> bool:
        try:
            table.put(one).require_bounded(one, field="rules.0", now=10.0)
        except InvalidInput as error:
            assert error.field == "rules.0" and "(rule_work)" in str(error)
            return True
        return False

    assert refused(pinning("much", 51)) and not refused(pinning("much", 50))
    three = parse({"none": [{"field": "a", "in": [1, 2, 3]}]}, at="", most=9)
    assert rule("f").work == 1 and Rule(id="f", filter=three).work == 23
    table = table.put(pinning("half", 30))
    if condition[0] is not None:
        table = table.put(pinning("other", 30))  # which gets the other one of its two words
    assert refused(pinning("more", 30)) and not refused(pinning("half", 40))
    assert not refused(pinning("more", 30, tenant=Tenant("shop", "apex")))
    ended = RuleTable.from_rules(
        [pinning(f"{day}", 30, expires_at=9) for day in range(9)], most_work=50
    )
    table = ended
    assert not refused(pinning("more", 30)) and refused(pinning("more", 51))


def test_a_query_with_the_words_of_too_many_rules_is_refused() -> None:
    words = [f"word{number}" for number in range(30)]
    table = RuleTable.from_rules([rule(word, word, "contains") for word in words], most_work=10)
    assert len(table.acting_on(" ".join(words[:20]))) == 20
    with pytest.raises(InvalidInput, match="2 times rule_work") as refused:
        table.acting_on(" ".join(words))
    assert refused.value.field == "queries"


def test_dates_and_writes_compile_each_rule_once(
    trigram_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work for a rule does not grow with the number of other rules, expired ones included."""
    compiled = Counter[str]()
    words = TypedQuery.__init__

    def counted(typed: TypedQuery, text: str) -> None:
        compiled[text] += 1
        words(typed, text)

    monkeypatch.setattr(TypedQuery, "__init__", counted)
    made: list[View] = []
    monkeypatch.setattr(filtered_view, "filtered", lambda *a: made.append(a[0]) or filtered(*a))
    memory, tenant = KnowledgeMemory(trigram_bundle), Tenant("shop", "apex")
    texts = [f"campaign {number}" for number in range(200)]
    for number, text in enumerate(texts):
        dates = {"starts_at": 10 * number, "expires_at": 10 * number + 15}
        memory.apply([put_rule(number + 1, replace(rule(text, text, "exact"), **dates))])
        memory.active(memory.view, 0)
    memory.of_tenant(memory.active(memory.view, 0), tenant)
    for number in range(200):
        active = memory.active(memory.view, 10 * number + 1)
        memory.of_tenant(active, tenant)
        asked = texts[number], texts[number - 1], texts[number - 2]
        acting = [one.id for one in active.rules.acting_on(*asked)]
        assert acting == sorted({texts[number], texts[max(0, number - 1)]})
    assert max(compiled.values()) == 4  # once for the rule, three times as a query
    assert len(made) == 1  # a tenant's labels stay what they are when a rule starts or expires


def test_expired_rules_cost_a_query_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [replace(rule(f"{day}", "lamp", "phrase"), expires_at=1) for day in range(2_000)]
    table = RuleTable.from_rules([*ended, rule("now", "lamp", "phrase")]).at(2)
    tried: list[str] = []
    holds = rule_table._Entry.holds

    def counted(entry: rule_table._Entry, *query: Any) -> bool:
        tried.append(entry.rule.id)
        return holds(entry, *query)

    monkeypatch.setattr(rule_table._Entry, "holds", counted)
    assert [one.id for one in table.acting_on("red lamp")] == tried == ["now"]
