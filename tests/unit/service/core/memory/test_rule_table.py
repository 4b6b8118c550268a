"""Rules are found by the words of a query, as if every rule were tried."""

from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import UnknownRule
from service.core.lexical.words import TypedQuery
from service.core.memory.rule_table import RuleTable
from service.core.page_cursor import PageCursor
from service.core.rules import Rule, RuleMatch

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
    assert table.dated == 1
    ids = {now: {one.id for one in table.active(now)} for now in (9, 10, 19, 20)}
    both = {"always", "d"}
    assert ids == {9: {"always"}, 10: both, 19: both, 20: {"always"}}
    assert (table.next_date(9.0), table.next_date(10.0)) == (10.0, 20.0)
    assert table.next_date(20.0) == float("inf")
    plain = RuleTable.from_rules([rule("always")])
    assert plain.active(0) is plain


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
    assert max(len(rules) for rules in table.by_key.values()) <= 2
    start = perf_counter()
    for _ in range(100):
        table.acting_on("cheap red brand77")
    assert (perf_counter() - start) / 100 < 0.001
