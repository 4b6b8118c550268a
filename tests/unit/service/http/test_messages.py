"""Whatever is wrong with a request, its answer says so in plain words, never in pydantic's."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import _pydantic_core

from service.core.errors import InvalidFields
from service.core.wrong_values import CHOICES, KINDS, OWN, SENTENCES, UNKNOWN
from service.http.bounded_model import BoundedModel
from service.settings import Limits
from tests.support.http.models import request_models

MODELS = vars(request_models(Limits(query_characters=40, metadata_bytes=60)))
# One value of each kind and at each limit.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 10**18, 10**30, 0.5, 1.5, 1e308, float("inf"), float("nan")),
    *("", " ", "\x1c", "x", "x" * 3_000, "-", "auto", "autoo", "exact", "1", "1.5", "true", "../a"),
    *("2020-01-01", "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "9999-99-99T00:00:00Z"),
    *([], [None], [1], ["x"], ["x", "x"], ["x"] * 2_000, [[]], [{}], [{"id": "x"}] * 2),
    *({}, {"a": 1}, {"a": None}, {"a": []}, {"a": ["x", 1]}, {"a": {"b": 1}}, {"x" * 2_000: 1}),
    *({str(number): number for number in range(100)}, {"a": "x" * 100}, {"a": 2**60}),
]
NEEDED = {"id": "x", "text": "x", "position": 1, "factor": 2, "then": {"hide": ["x"]}}
# pydantic's messages as patterns; what stands in braces is filled in.
TEMPLATES = [
    re.sub(r"\\\{.*?\\\}", ".*", re.escape(one[form]))
    for one in _pydantic_core.list_all_errors()
    for form in ("message_template_python", "message_template_json")
    if form in one
]
WORDING = re.compile("|".join(TEMPLATES))
WORDS = re.compile(r"Input should|should be a valid|Value error|instance of|Extra inputs|Field req")


def models_within(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_within(part)


def documents(model: type[BaseModel], value: Any) -> Iterator[Any]:
    """Yield documents in which one field, at any depth, has a value, and some that lack fields."""
    yield value
    for name, info in model.model_fields.items():
        yield {name: value}
        for inner in models_within(info.annotation):
            for document in documents(inner, value):
                yield {name: document}
                yield {name: [document]}
                # Next to it, what the model requires, so that its own checks are reached.
                given = {
                    "id": "x",
                    "text": "x",
                    "position": 1,
                    "factor": 2,
                    "then": {"hide": ["x"]},
                }
                if isinstance(document, dict):
                    known = {one: given[one] for one in inner.model_fields.keys() & given.keys()}
                    yield {name: [{**known, **document}]}
                    yield {name: {**known, **document}}


def all_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield from (one for one in model.__mro__ if issubclass(one, BaseModel))
    for info in model.model_fields.values():
        for inner in models_within(info.annotation):
            yield from all_models(inner)


CLASSES = {one.__name__ for model in MODELS.values() for one in all_models(model)}


@pytest.mark.parametrize("name", MODELS)
def test_no_message_is_pydantics_and_none_is_vague(name: str) -> None:
    model, types = MODELS[name], set[str]()
    bounded = BoundedModel(model)
    for value in VALUES:
        for document in documents(model, value):
            try:
                bounded.validate(document)
            except InvalidFields as error:
                for field, message in error.fields:
                    assert not WORDING.fullmatch(message), (field, message)
                    assert not WORDS.search(message), (field, message)
                    assert not CLASSES.intersection(re.findall(r"\w+", message)), (field, message)
                    assert "is not as documented" not in message, (field, message)
                    last = field.rpartition(".")[2]
                    assert not field or last[:20] in message, (field, message)
            try:
                model.model_validate(document)
            except ValidationError as error:
                types.update(one["type"] for one in error.errors(include_url=False))
    assert types <= {*KINDS, *SENTENCES, *CHOICES, *UNKNOWN, *OWN}


@pytest.mark.parametrize(
    ("name", "document", "field", "message"),
    [
        ("predict", {"queries": "a"}, "queries", "'queries' must be a list, not a string"),
        ("predict", {"queries": ["a", ""]}, "queries.1", "'queries.1' must not be empty"),
        ("predict", {"queries": ["a"], "top_k": 0}, "top_k", "'top_k' must be at least 1"),
        (
            "predict",
            {"queries": ["a"], "top_k": 3.5},
            "top_k",
            "'top_k' must be a whole number without a decimal point",
        ),
        (
            "predict",
            {"queries": ["a"], "spelling": "of"},
            "spelling",
            "'spelling' must be 'auto' or 'off'; did you mean off?",
        ),
        ("predict", [], "", "must be an object, not a list"),
        ("labels", {"labels": [3]}, "labels.0", "'labels.0' must be an object, not a number"),
        ("labels", {"labels": [{}]}, "labels.0.text", "'text' is missing"),
        (
            "labels",
            {"labels": [{"text": "a", "metadata": {"x" * 2_000: 1}}]},
            f"labels.0.metadata.{'x' * 2_000}",
            "the name 'xxxxxxxxxxxxxxxxxxxx",
        ),
        (
            "rules",
            {"rules": [{"id": "a", "then": {"boost": {"factr": 2, "labels": ["a"]}}}]},
            "rules.0.then.boost.factr",
            "'factr' is unknown; known are labels, filter, factor; did you mean factor?",
        ),
        (
            "rules",
            {"rules": [{"id": "a", "then": {"boost": 3}}]},
            "rules.0.then.boost",
            "'boost' must be an object, not a number",
        ),
        ("rules", {"rules": [{"id": "a"}]}, "rules.0", "'rules.0' has no consequences: give"),
        ("label_page", {"limit": "many"}, "limit", "'limit' must be a whole number"),
        ("reload", {"bundle": "../a"}, "bundle", "'bundle' must be a folder's name: 1 to 128"),
    ],
)
def test_a_message_says_what_is_wrong_and_what_is_allowed(
    name: str, document: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidFields) as refused:
        BoundedModel(MODELS[name]).validate(document)
    [said] = [said for at, said in refused.value.fields if at == field]
    assert said.startswith(message)
