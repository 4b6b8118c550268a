"""Request models take their limits from the settings, and ids from the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.http.request_models import RequestModels
from service.http.request_models.labels import normalised
from service.settings import Limits


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


@pytest.mark.parametrize(
    ("text", "label_id"),
    [
        ("Password  Manager", "password manager"),
        ("Straße", "strasse"),
        ("\ufb01re", "fire"),
        ("\u2460", "1"),
        ("I\u0307", "i\u0307"),
        ("a\u00a0b", "a b"),
    ],
)
def test_ids_are_normalised_texts(text: str, label_id: str) -> None:
    assert normalised(text) == label_id


@given(text=st.text(min_size=1, max_size=20))
def test_every_accepted_text_gives_a_normalised_id(text: str) -> None:
    model = RequestModels(Limits()).labels
    try:
        [body] = model(labels=[{"text": text}]).labels
    except ValidationError:
        assert not text.strip()  # refused for nothing else than being blank
        return
    label = body.to_label()
    assert label.id == " ".join(label.id.split())
    assert label.id
    assert label.text.strip()


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
