"""Request models take their limits from the settings, and missing ids from the text."""

from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.core.text_identity import identity
from service.http.request_models import RequestModels
from service.settings import Limits

MODELS = RequestModels(Limits())


def test_limits_are_those_of_the_settings() -> None:
    limits = Limits(queries=2, query_characters=5, top_k=3, depth=4, deadline_ms=50)
    model = RequestModels(limits).predict
    asked = model(queries=["  ab ", "cd"], top_k=3, depth=4, deadline_ms=50)
    assert asked.queries == ["ab", "cd"]
    assert model(queries=["a"]).deadline_ms is None
    for wrong in (
        {"queries": ["a", "b", "c"]},
        {"queries": ["abcdef"]},
        {"queries": ["a"], "top_k": 4},
        {"queries": ["a"], "depth": 5},
        {"queries": ["a"], "deadline_ms": 51},
    ):
        with pytest.raises(ValidationError):
            model(**wrong)


def test_a_label_may_be_forbidden_to_carry_queries_or_metadata() -> None:
    model = RequestModels(Limits(label_queries=0, metadata_entries=0)).labels
    assert model(labels=[{"text": "a"}])
    for extra in ({"queries": ["q"]}, {"metadata": {"a": "b"}}):
        with pytest.raises(ValidationError):
            model(labels=[{"text": "a", **extra}])


def test_a_label_or_item_without_id_gets_none_here() -> None:
    assert MODELS.label.model_validate({"text": "AB"}).to_label().id == ""
    [item] = MODELS.items(items=[{"text": "AB"}]).items
    assert item.to_item().id == ""


@given(text=st.text(min_size=1, max_size=20))
def test_every_accepted_text_has_an_identity_that_is_an_id(text: str) -> None:
    try:
        [body] = MODELS.labels(labels=[{"text": text}]).labels
    except ValidationError:
        assert not text.strip()  # only blank texts are refused
        return
    made = identity(body.text)
    assert MODELS.label.model_validate({"text": "a", "id": made}).id == made
    assert MODELS.instances(instances=[{"query": "a", "labels": [made]}])


def test_an_id_made_from_a_text_is_known_under_any_limit_of_texts() -> None:
    models = RequestModels(Limits(query_characters=20))
    longest = identity("\ufdfa" * 20)
    assert len(longest) > 200
    [body] = models.instances(instances=[{"query": "a", "labels": [longest]}]).instances
    assert body.labels == [longest]


def test_the_event_loop_normalizes_no_line_of_a_stream() -> None:
    """Sorting this text's marks took 8 ms: three streams of such lines blocked everything else."""
    model, slow = MODELS.label, "a" + "\u0344" * 1023 + "\u0316" * 1023
    start = thread_time()
    for _ in range(50):
        assert model.model_validate({"text": slow}).to_label().text == slow
    assert thread_time() - start < 0.1


def test_equal_texts_of_a_request_are_refused_whatever_their_spelling() -> None:
    spelled = [{"text": "AB"}, {"text": "\uff41\uff42"}]
    with pytest.raises(ValidationError, match="label 1 repeats the id 'ab'"):
        MODELS.labels(labels=spelled)
    with pytest.raises(ValidationError, match="item 1 repeats the id 'ab'"):
        MODELS.items(items=spelled)
    assert MODELS.labels(labels=[{"text": "AB", "id": "1"}, {"text": "AB", "id": "2"}])


def test_metadata_has_a_greatest_size_in_bytes_over_all_entries() -> None:
    label = RequestModels(Limits(metadata_bytes=10)).label
    assert label.model_validate({"text": "a", "metadata": {"ab": "cd", "é": "ef"}})
    with pytest.raises(ValidationError) as error:
        label.model_validate({"text": "a", "metadata": {"ab": "cd", "é": "éé" + "x"}})
    [wrong] = error.value.errors()
    assert wrong["loc"] == ("metadata",)
    assert "has 11 bytes" in wrong["msg"] and "at most 10" in wrong["msg"]
    described = label.model_json_schema()["properties"]["metadata"]["description"]
    assert "at most 10 bytes" in described
