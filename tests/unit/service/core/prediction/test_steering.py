"""Rules and boosts on answers: what is hidden, pinned, boosted and filtered, and why."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.bundle.bundle import Bundle
from service.core.changes import Change
from service.core.label_filter import LabelFilter, parse
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.rule_table import RuleTable
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.rules import Boost, Pin, Rule
from service.core.types import Keyword, NewLabel, Prediction, PredictOptions
from tests.support.changes import click, put, put_rule
from tests.support.tiny.encoder import TrigramEncoder

QUERY = "light tent for the trail"
ALL = PredictOptions(top_k=50, depth=400, memorization=0.5)


@pytest.fixture
def memory(trigram_bundle: Bundle) -> KnowledgeMemory:
    """Return a memory of the bundle with posted labels, of which some have prices."""
    memory = KnowledgeMemory(trigram_bundle)
    changes: list[Change] = [
        put(1, NewLabel(id="far", text="unrelated words", metadata={"price": 5})),
        put(2, NewLabel(id="near", text="light trail tent", metadata={"price": 50})),
        click(3, "tent trail", "near", "far", weight=2.0),
    ]
    memory.apply(changes)
    return memory


def price(**bounds: float) -> Any:
    return parse({"all": [{"field": "price", **bounds}]}, at="filter", most=9)


def steered(
    memory: KnowledgeMemory,
    *rules: Rule,
    options: PredictOptions = ALL,
    query: str = QUERY,
) -> Prediction:
    memory.apply([put_rule(memory.view.version + 1 + n, rule) for n, rule in enumerate(rules)])
    return answer(memory.view, options=options, query=query)


def answer(
    view: View,
    *,
    options: PredictOptions = ALL,
    query: str = QUERY,
) -> Prediction:
    predictor = Predictor(TrigramEncoder(), tau=0.1)
    [prediction] = predictor.predict(view, [query], options).predictions
    return prediction


def ids(prediction: Prediction) -> list[str]:
    return [keyword.id for keyword in prediction.keywords]


def scores(keywords: Sequence[Keyword]) -> dict[str, float]:
    return {keyword.id: keyword.score for keyword in keywords}


def test_hidden_labels_are_left_out_and_others_keep_their_scores(memory: KnowledgeMemory) -> None:
    plain = answer(memory.view)
    hidden = ids(plain)[:2]
    found = steered(memory, Rule(id="r", hide=(*hidden, "never-posted")))
    assert ids(found) == ids(plain)[2:]
    assert scores(found.keywords).items() <= scores(plain.keywords).items()
    first = answer(memory.view, options=replace(ALL, top_k=3))
    assert ids(first) == ids(plain)[2:5]  # `top_k` is filled


@pytest.mark.parametrize("top_k", [1, 3, 50])
def test_boosts_order_by_score_times_factor(memory: KnowledgeMemory, top_k: int) -> None:
    plain = answer(memory.view)
    last, second = ids(plain)[-1], ids(plain)[1]
    factors = {last: 500.0, second: 0.01}
    rules = [
        Rule(id=one, boost=Boost(factor=factor, labels=(one,))) for one, factor in factors.items()
    ]
    found = steered(memory, *rules, options=replace(ALL, top_k=top_k))
    ranked = sorted(
        plain.keywords, key=lambda keyword: -keyword.score * factors.get(keyword.id, 1.0)
    )
    assert ids(found) == [keyword.id for keyword in ranked][:top_k]
    assert scores(found.keywords).items() <= scores(plain.keywords).items()
    for keyword in found.keywords:
        assert keyword.boost == pytest.approx(factors.get(keyword.id, 1.0))


def test_a_labels_own_boost_is_multiplied_by_those_of_rules(memory: KnowledgeMemory) -> None:
    plain = answer(memory.view)
    memory.apply([put(9, NewLabel(id="far", text="unrelated words", boost=8.0))])
    found = answer(memory.view)
    boosts = {keyword.id: keyword.boost for keyword in found.keywords}
    assert boosts.pop("far") == 8.0 and set(boosts.values()) == {1.0}
    assert scores(found.keywords) == pytest.approx(scores(plain.keywords), abs=1e-12)
    found = steered(memory, Rule(id="r", boost=Boost(factor=0.5, labels=("far",))))
    assert {k.id: k.boost for k in found.keywords}["far"] == 4.0
    memory.apply([put(19, NewLabel(id="far", text="unrelated words"))])
    assert {k.id: k.boost for k in answer(memory.view).keywords}["far"] == 0.5


def test_a_boost_by_filter_reaches_the_labels_that_pass(memory: KnowledgeMemory) -> None:
    boost = Boost(factor=3.0, filter=price(lt=10))
    found = steered(memory, Rule(id="r", boost=boost))
    assert {keyword.id for keyword in found.keywords if keyword.boost != 1.0} == {"far"}


def test_pins_stand_at_their_positions_with_their_own_scores(memory: KnowledgeMemory) -> None:
    plain = answer(memory.view)
    *_, low, last = ids(plain)
    rule = Rule(id="r", pins=(Pin(id=low, position=3), Pin(id=last, position=1)))
    found = steered(memory, rule, options=replace(ALL, top_k=4))
    rest = [one for one in ids(plain) if one not in (low, last)]
    assert ids(found) == [last, rest[0], low, rest[1]]
    assert [keyword.pinned for keyword in found.keywords] == [True, False, True, False]
    assert scores(found.keywords).items() <= scores(plain.keywords).items()
    assert {keyword.boost for keyword in found.keywords} == {1.0}


def test_a_pin_without_votes_scores_0_and_one_beyond_the_end_comes_last(
    memory: KnowledgeMemory,
) -> None:
    memory.apply([put(9, NewLabel(id="lone", text="qqq", metadata={"price": 1}))])
    shallow = replace(ALL, depth=2, top_k=5)
    rule = Rule(id="r", pins=(Pin(id="lone", position=900),))
    found = steered(memory, rule, options=shallow)
    assert found.keywords[-1].id == "lone" and found.keywords[-1].score == 0.0
    assert ids(found)[:-1] == ids(answer(replace(memory.view, rules=RuleTable()), options=shallow))
    assert found.keywords[-1].evidence == ()


def test_a_pin_obeys_hides_filters_and_the_types_of_the_request(memory: KnowledgeMemory) -> None:
    pin = Rule(id="pin", query="tent", match="phrase", pins=(Pin(id="far", position=1),))
    assert ids(steered(memory, pin))[0] == "far"
    phrases = answer(memory.view, options=replace(ALL, match=("phrase",)))
    assert "far" not in ids(phrases)
    narrow = memory.only(memory.view, price(gt=10))
    assert ids(answer(narrow)) == ["near"]
    assert "far" not in ids(steered(memory, Rule(id="hide", hide=("far",))))
    assert "pin" not in answer(memory.view, query="boots", options=replace(ALL, explain=True)).rules


def test_of_two_pins_at_one_position_the_more_specific_rule_comes_first(
    memory: KnowledgeMemory,
) -> None:
    first, second, third, *_ = ids(answer(memory.view))
    found = steered(
        memory,
        Rule(id="a", pins=(Pin(id=third, position=1), Pin(id=second, position=2))),
        Rule(id="b", query=QUERY, match="exact", pins=(Pin(id=second, position=1),)),
        options=replace(ALL, top_k=3),
    )
    assert ids(found) == [second, third, first]


def test_a_filter_of_a_rule_answers_as_a_filter_of_the_request(memory: KnowledgeMemory) -> None:
    wanted = price(exists=True)
    expected = answer(memory.only(memory.view, wanted))
    found = steered(memory, Rule(id="r", query="tent", match="contains", filter=wanted))
    assert found == expected and ids(found)
    both = steered(memory, Rule(id="s", filter=price(lt=10)))
    assert ids(both) == ["far"]


def test_a_filter_of_a_rule_is_known_before_the_search(
    memory: KnowledgeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule(id="r", query="boots", match="contains", filter=price(exists=True))
    memory.apply([put_rule(memory.view.version + 1, rule)])
    search, searches = View.search, list[list[str]]()

    def noted(view: View, queries: Sequence[str], *arguments: Any, **options: Any) -> Any:
        searches.append(list(queries))
        return search(view, queries, *arguments, **options)

    monkeypatch.setattr(View, "search", noted)
    queries = ["lamp", "boots", "tent"]
    found = [answer(memory.view, query=query) for query in queries]
    assert searches == [[query] for query in queries]
    together = Predictor(TrigramEncoder(), tau=0.1).predict(memory.view, queries, ALL)
    assert searches[3:] == [["boots"], ["lamp", "tent"]]
    assert [ids(one) for one in together.predictions] == [ids(one) for one in found]
    explained = answer(memory.view, options=replace(ALL, explain=True), query="boots")
    assert searches[5:] == [["boots"], ["boots"]]  # the first says what answers without the rule
    assert ids(explained) == ids(found[1]) != list(explained.without_rules)


WORDS = ("zorbals", "zorbils", "trampet", "trumpet", "garden hose", "light tent")
FILTERS = tuple(
    price(**one) for one in ({"lt": 10}, {"gte": 10}, {"exists": True}, {"exists": False})
)


@given(
    st.lists(st.tuples(st.sampled_from(WORDS), st.integers(1, 19)), min_size=1, max_size=6),
    st.sampled_from(("zorbuls", "zorbal", "trmpet", "gardn hose", "lihgt tent", *WORDS)),
    st.sampled_from(FILTERS),
    st.sampled_from((None, "zorbals", "zorbils", "trumpet")),
)
def test_two_ways_to_one_filter_give_the_same_readings_and_answers(
    trigram_bundle: Bundle,
    labels: list[tuple[str, int]],
    query: str,
    wanted: LabelFilter,
    meant: str | None,
) -> None:
    memory = KnowledgeMemory(trigram_bundle)
    memory.apply(
        [
            put(place, NewLabel(id=f"l{place}", text=text, metadata={"price": cents}))
            for place, (text, cents) in enumerate(labels, 1)
        ]
    )
    options = replace(ALL, spelling=True)
    by_request = answer(memory.only(memory.view, wanted), options=options, query=query)
    condition: dict[str, Any] = {} if meant is None else {"query": meant, "match": "contains"}
    unsteered = answer(memory.view, options=options, query=query)
    found = steered(memory, Rule(id="r", filter=wanted, **condition), options=options, query=query)
    acts = meant is None or meant in query or meant in unsteered.reading.text
    assert found == (by_request if acts else unsteered)


def test_explanations_name_the_rules_and_the_answer_without_them(memory: KnowledgeMemory) -> None:
    explain = replace(ALL, explain=True, top_k=3)
    plain = answer(memory.view, options=explain)
    assert (plain.rules, plain.without_rules) == ((), ())
    first, *_ = ids(plain)
    found = steered(
        memory,
        Rule(id="hide", hide=(first,)),
        Rule(id="other", query="boots", match="exact", hide=(first,)),
        Rule(
            id="exact", query=QUERY.upper(), match="exact", boost=Boost(factor=2.0, labels=(first,))
        ),
        options=explain,
    )
    assert found.rules == ("exact", "hide")
    assert found.without_rules == tuple(ids(plain))
    assert found.keywords[0].evidence and sum(
        row.weight for row in found.keywords[0].evidence
    ) == pytest.approx(found.keywords[0].score, abs=1e-9)


def test_diversity_and_confidence_leave_pins_where_they_are(memory: KnowledgeMemory) -> None:
    last = ids(answer(memory.view))[-1]
    rule = Rule(id="r", pins=(Pin(id=last, position=2),))
    found = steered(memory, rule, options=replace(ALL, diversity=0.7, top_k=5))
    assert ids(found)[1] == last and len(ids(found)) == 5
    assert len(set(ids(found))) == 5


def test_a_misspelled_query_is_steered_as_it_is_read_and_as_it_is_typed(
    memory: KnowledgeMemory,
) -> None:
    spelled = replace(ALL, spelling=True, explain=True)
    read = Rule(id="read", query="light tent", match="phrase", hide=("near",))
    typed = Rule(id="typed", query="lihgt", match="contains", hide=("far",))
    found = steered(memory, read, typed, options=spelled, query="lihgt tent")
    assert found.reading.text == "light tent"
    assert found.rules == ("read", "typed")
