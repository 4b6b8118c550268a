"""Validation stops after enough errors; if there are fewer, it reports the same as pydantic."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from service.core.errors import InvalidFields, InvalidInput
from service.http import problems
from service.http.bounded_model import (
    FEW,
    MOST,
    BoundedModel,
    MostValues,
    body_parts,
    most_values,
    wrong_fields,
)
from service.settings import Limits
from tests.support.http.models import request_models

MODELS = request_models(Limits())
texts = st.text(alphabet='a\\"[]{},: \n', max_size=8)
documents = st.recursive(
    st.integers(-9, 9) | texts | st.none(),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(texts, children, max_size=5),
    max_leaves=30,
)
MANY = {f"unknown{number}": 0 for number in range(20_000)}
LONG = {f"name{number}": 0 for number in range(20_000)}
LABELS = {"labels": [{"text": "tent", "queries": ["a", "b"]}, {"text": "boots", "id": "b"}]}


def count(document: object) -> tuple[int, int]:
    """Count marks of values (`,`, `[`, `{`) and of names (`:`) in a slow and simple way."""
    if isinstance(document, list | dict):
        inner = document.values() if isinstance(document, dict) else document
        below = [count(value) for value in inner]
        values = 1 + max(0, len(document) - 1) + sum(values for values, _ in below)
        names = (len(document) if isinstance(document, dict) else 0) + sum(n for _, n in below)
        return values, names
    return 0, 0


def refused(content: bytes, *, values: float, names: float) -> bool:
    try:
        MostValues(values=values, names=names).require(content, what="body")
    except InvalidInput:
        return True
    return False


@given(document=documents)
def test_marks_within_texts_do_not_count(document: object) -> None:
    content, (values, names) = orjson.dumps(document), count(document)
    assert not refused(content, values=values, names=names)
    assert not values or refused(content, values=values - 1, names=names)
    assert not names or refused(content, values=values, names=names - 1)


@given(content=st.binary(max_size=100))
def test_any_bytes_are_counted_or_left_to_the_parser(content: bytes) -> None:
    refused(content, values=1, names=1)


def test_what_a_model_may_have_follows_from_the_limits() -> None:
    limits = Limits(labels=300, label_aliases=20, label_queries=100, metadata_entries=50)
    most = most_values(request_models(limits).labels)
    label = {
        "id": "a",
        "text": "a",
        "aliases": ["a"] * 20,
        "queries": ["a"] * 100,
        "metadata": {**{str(n): "" for n in range(49)}, "list": [""] * 50},
        "starts_at": "a",
        "expires_at": "a",
        "boost": 1.0,
    }
    values, names = count({"labels": [label] * 300})
    assert values <= most.values <= values * 1.02
    assert names == most.names or most.names == FEW


@pytest.mark.parametrize("model", [MODELS.predict, MODELS.label, MODELS.instances, MODELS.labels])
def test_nothing_short_is_refused(model: type) -> None:
    assert not refused(b"[" + b"0," * (FEW - 2) + b"0]", values=most_values(model).values, names=0)


def parts(content: bytes) -> tuple[dict[str, object], list[object]] | None:
    """Split a body with the list `labels` into its other fields and the list's parsed entries."""
    split = body_parts(content, "labels", known=("labels", "mode"), most=None)
    return split and (split[0], list(split[1]))


@pytest.mark.parametrize(
    "document",
    [
        {"labels": []},
        {"labels": [{"text": 'a "b" ]}', "queries": ["ü", "\u2028"]}, 1, None]},
        {"mode": {"deep": [1, 2]}, "labels": [[[]], "x"]},
    ],
)
@pytest.mark.parametrize("spaces", [None, orjson.OPT_INDENT_2])
def test_the_parts_are_those_of_the_whole(document: dict[str, object], spaces: int | None) -> None:
    fields = {name: value for name, value in document.items() if name != "labels"}
    assert parts(orjson.dumps(document, option=spaces)) == (fields, document["labels"])


def test_the_last_of_two_fields_of_a_name_counts_as_in_the_whole() -> None:
    assert parts(b'{"labels": [1], "labels": [2]}') == ({}, [2])


def wrong(model: type[BaseModel], document: Any) -> list[tuple[str, str]]:
    """Return the invalid fields that `BoundedModel` reports."""
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
        (MODELS.predict, {"queries": ["a"], "top_k": 2}),
        (MODELS.predict, {"queries": [""], "top_k": 0, "top_kk": 3}),
        (MODELS.labels, LABELS),
        (MODELS.labels, {"labels": [{"text": ""}, {"text": "a", "id": 1}, 3], "y": 1}),
        (MODELS.labels, {"labels": [{"text": "a"}, {"text": "A"}]}),
        (MODELS.labels, {"labels": [{"text": "a"}] * 2_000}),
        (MODELS.labels, {"labels": [{"text": "a", "metadata": {"a": [1, {"b": 2}]}}]}),
        (MODELS.labels, {"labels": []}),
        (MODELS.labels, {}),
        (MODELS.labels, [1]),
        (MODELS.labels, {"labels": {"text": "a"}}),
        (MODELS.instances, {"instances": [{"query": "a", "labels": ["b", 1]}]}),
        (MODELS.instances, {"instances": [{"query": "a", "labels": []}, {"labels": ["b"]}]}),
        (MODELS.label, {"text": 1, "metadata": {"a": 1}}),
    ],
)
def test_documents_and_json_are_validated_as_by_pydantic(
    model: type[BaseModel], document: Any
) -> None:
    bounded = BoundedModel(model)
    ways = [(bounded.validate, document), (bounded.validate_json, orjson.dumps(document))]
    try:
        expected = model.model_validate(document)
    except ValidationError as error:
        for validate, content in ways:
            with pytest.raises(InvalidFields) as refused:
                validate(content)
            assert list(refused.value.fields) == wrong_fields(error, model)
    else:
        assert [validate(content) for validate, content in ways] == [expected] * 2


def test_an_unknown_field_is_answered_with_those_that_are_known() -> None:
    [(field, message)] = wrong(MODELS.predict, {"queries": ["a"], "topk": 3})
    assert (field, message.endswith("did you mean top_k?")) == ("topk", True)
    labels = {"labels": [{"text": "a"}, {"text": "b", "brand": 1}]}
    [(field, message)] = wrong(MODELS.labels, labels)
    assert field == "labels.1.brand"
    assert (
        message == "'brand' is unknown; known are id, text, aliases, queries, metadata, starts_at,"
        " expires_at, boost"
    )


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
    "content",
    [
        b"",
        b"\xff",
        b'{"labels": [1}',
        b'{"labels": [1]} 2',
        b'{"labels": [], "mode": NaN}',
        b'{"labels": ' + b"[" * 100_000,
        *(b'{"labels": [{"text": "a"}, %s]}' % wrong for wrong in (b'"\\ud800"', b'"\xff"', b"01")),
        b'{"labels": [0, ' + b"[" * 2_000 + b"]" * 2_000 + b"]}",
    ],
)
def test_malformed_json_is_refused_with_its_place_in_the_whole(content: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError) as refused:
        BoundedModel(MODELS.labels).validate_json(content)
    with pytest.raises(orjson.JSONDecodeError) as whole:
        orjson.loads(content)
    assert refused.value.pos == whole.value.pos
