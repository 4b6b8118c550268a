"""Validation stops where one more error makes no difference, and says the same where it does."""

from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from service.core.errors import InvalidFields
from service.http import problems
from service.http.bounded_model import MOST, BoundedModel, wrong_fields
from service.http.request_models import RequestModels
from service.settings import Limits

MODELS = RequestModels(Limits())
MANY = {f"unknown{number}": 0 for number in range(20_000)}
LONG = {f"name{number}": 0 for number in range(20_000)}
LABELS = {"labels": [{"text": "tent", "queries": ["a", "b"]}, {"text": "boots", "id": "b"}]}


def wrong(model: type[BaseModel], document: Any) -> list[tuple[str, str]]:
    """The invalid fields that a bounded model names."""
    try:
        BoundedModel(model).validate(document)
    except InvalidFields as error:
        return list(error.fields)
    return []


@pytest.mark.parametrize(
    ("model", "document"),
    [
        (MODELS.predict, MANY),
        (MODELS.labels, MANY),
        (MODELS.labels, {"labels": [MANY] * 100}),
        (MODELS.labels, {"labels": [{"text": "a", "metadata": LONG}] * 100}),
        (MODELS.labels, {"labels": [{"text": str(n), "queries": [1] * 100} for n in range(1000)]}),
        (MODELS.labels, {"labels": [1] * 20_000}),
        (MODELS.instances, {"instances": [{"query": "a", "labels": [1] * 100}] * 1000}),
        (MODELS.label, {"text": "a", "metadata": LONG, **MANY}),
    ],
    ids=["fields", "no list", "entries", "metadata", "queries", "too many", "clicks", "one line"],
)
def test_there_are_never_many_more_errors_than_are_shown(
    model: type[BaseModel], document: Any
) -> None:
    assert 0 < len(wrong(model, document)) < 4 * MOST


@pytest.mark.parametrize(
    ("model", "document"),
    [
        (MODELS.predict, {"queries": [""], "top_k": 0, "top_kk": 3}),
        (MODELS.labels, {"labels": [{"text": ""}, {"text": "a", "id": 1}, 3], "y": 1}),
        (MODELS.labels, {"labels": [{"text": "a"}, {"text": "A"}]}),
        (MODELS.labels, {"labels": []}),
        (MODELS.labels, {}),
        (MODELS.labels, [1]),
        (MODELS.labels, {"labels": {"text": "a"}}),
        (MODELS.instances, {"instances": [{"query": "a", "labels": []}, {"labels": ["b"]}]}),
        (MODELS.label, {"text": 1, "metadata": {"a": 1}}),
    ],
)
def test_a_few_errors_are_the_same_as_pydantics(model: type[BaseModel], document: Any) -> None:
    with pytest.raises(ValidationError) as error:
        model.model_validate(document)
    assert wrong(model, document) == wrong_fields(error.value, model)


def test_a_valid_document_gives_the_same_value() -> None:
    valid = BoundedModel(MODELS.labels).validate(LABELS)
    assert valid == MODELS.labels.model_validate(LABELS)


@pytest.mark.parametrize(
    ("model", "document", "field", "message"),
    [
        (
            MODELS.predict,
            {"queries": ["a"], "topk": 3},
            "topk",
            "'topk' is unknown; known are queries, top_k, memorization, depth, explain,"
            " min_version, rerank, deadline_ms, items; did you mean top_k?",
        ),
        (
            MODELS.labels,
            {"labels": [{"text": "a"}, {"text": "b", "brand": 1}]},
            "labels.1.brand",
            "'brand' is unknown; known are id, text, queries, metadata",
        ),
        (
            MODELS.labels,
            {"label": [], "labels": [{"text": "a"}]},
            "label",
            "'label' is unknown; known are labels; did you mean labels?",
        ),
        (
            MODELS.page,
            {"limits": "3"},
            "limits",
            "'limits' is unknown; known are after, limit; did you mean limit?",
        ),
    ],
)
def test_an_unknown_field_is_answered_with_those_that_are_known(
    model: type[BaseModel], document: Any, field: str, message: str
) -> None:
    assert wrong(model, document) == [(field, message)]


def test_answers_name_fields_and_echo_no_value() -> None:
    def answer(document: object) -> bytes:
        return problems.from_error(InvalidFields(wrong(MODELS.predict, document))).body

    assert b"hunter2" not in answer({"queries": ["a"], "depth": "hunter2"})
    assert orjson.loads(answer([]))["errors"][0]["field"] == "body"
    many = orjson.loads(answer({"queries": ["a"]} | MANY))
    assert many["detail"].startswith("more than 100 field(s)")
    assert len(many["errors"]) == problems.SHOWN_FIELDS
    assert len(answer({"queries": ["a"], "x" * 100_000: 1})) < 1000


@pytest.mark.parametrize(
    ("model", "document"),
    [
        (MODELS.labels, LABELS),
        (MODELS.labels, {"labels": []}),
        (MODELS.labels, {"labels": [{"text": "a"}] * 2_000}),
        (MODELS.labels, {"labels": [{"text": "a"}, {"text": " "}, 1], "more": 1}),
        (MODELS.labels, {"labels": [{"text": "a", "metadata": {"a": [1, {"b": 2}]}}]}),
        (MODELS.instances, {"instances": [{"query": "a", "labels": ["b", 1]}]}),
        (MODELS.predict, {"queries": ["a"], "top_k": 2}),
        (MODELS.labels, [1]),
    ],
)
def test_json_is_validated_as_the_document_in_it(model: type[BaseModel], document: Any) -> None:
    bounded = BoundedModel(model)
    content = orjson.dumps(document)
    try:
        expected: Any = bounded.validate(document)
    except InvalidFields as error:
        with pytest.raises(InvalidFields) as refused:
            bounded.validate_json(content)
        assert refused.value.fields == error.fields
    else:
        assert bounded.validate_json(content) == expected


def test_malformed_json_is_refused_with_its_place_in_the_whole() -> None:
    content = b'{"labels": [{"text": "a"}, {"text": "\\ud800"}]}'
    with pytest.raises(orjson.JSONDecodeError) as refused:
        BoundedModel(MODELS.labels).validate_json(content)
    with pytest.raises(orjson.JSONDecodeError) as whole:
        orjson.loads(content)
    assert refused.value.pos == whole.value.pos
