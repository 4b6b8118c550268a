"""Rules as documents, and their order."""

import orjson
import pytest

from service.core.rules import Boost, Pin, Rule, from_document
from tests.support.label_filters import FILTERS
from tests.support.rules import RULES


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_read_back_from_its_document(rule: Rule) -> None:
    assert from_document(orjson.loads(orjson.dumps(rule.document()))) == rule


def test_a_document_has_only_what_the_rule_has() -> None:
    assert Rule(id="r", hide=("a",)).document() == {"id": "r", "then": {"hide": ["a"]}}
    boost = Boost(factor=2.0, filter=FILTERS[0])
    assert Rule(id="r", query="x", match="exact", filter=FILTERS[0], boost=boost).document() == {
        "id": "r",
        "when": {"query": "x", "match": "exact"},
        "filter": FILTERS[0].document(),
        "then": {"boost": {"factor": 2.0, "filter": FILTERS[0].document()}},
    }


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"id": "r", "when": {"query": "x"}},
        {"id": "r", "when": {"query": "x", "match": "like"}},
        {"id": "r", "filter": {"all": [{"field": "a", "like": 1}]}},
        {"id": "r", "then": {"pin": [{"id": "a"}]}},
        {"id": "r", "then": {"boost": {"labels": ["a"]}}},
    ],
)
def test_a_wrong_document_is_refused(document: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_document(document)


def test_the_more_specific_rule_comes_first_then_the_smaller_id() -> None:
    rules = [
        Rule(id="a", hide=("x",)),
        Rule(id="z", query="x", match="exact", hide=("x",)),
        Rule(id="c", query="x", match="contains", hide=("x",)),
        Rule(id="b", query="x", match="contains", hide=("x",)),
        Rule(id="p", query="x", match="phrase", hide=("x",)),
    ]
    ordered = sorted(rules, key=lambda rule: rule.precedence)
    assert [rule.id for rule in ordered] == ["z", "p", "b", "c", "a"]


def test_a_rule_names_the_fields_of_its_labels() -> None:
    rule = Rule(
        id="r",
        hide=("a",),
        pins=(Pin(id="b", position=3),),
        boost=Boost(factor=2.0, labels=("c", "d")),
    )
    assert list(rule.named_labels()) == [
        ("then.hide.0", "a"),
        ("then.pin.0.id", "b"),
        ("then.boost.labels.0", "c"),
        ("then.boost.labels.1", "d"),
    ]
