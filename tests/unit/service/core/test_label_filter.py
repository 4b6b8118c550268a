"""Filters as requests write them: what is refused, and where."""

from typing import Any

import pytest

from service.core.errors import InvalidInput
from service.core.label_filter import (
    LARGEST_INTEGER,
    MOST_LEVELS,
    as_metadata,
    list_items,
    metadata_bytes,
    parse,
)


def condition(operator: str = "eq", value: Any = "red", field: Any = "color") -> dict[str, Any]:
    return {"field": field, operator: value}


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {"all": [condition()]}
    for _ in range(levels - 1):
        document = {"none": [document]}
    return document


@pytest.mark.parametrize(
    ("document", "field", "message"),
    [
        ("red", "filter", "must be an object"),
        ([condition()], "filter", "must be an object"),
        ({}, "filter", "has no conditions"),
        (condition(), "filter", "'field' is unknown"),
        ({"and": [condition()]}, "filter", "'and' is unknown"),
        ({"all": []}, "filter.all", "at least one"),
        ({"all": condition()}, "filter.all", "must be a list"),
        ({"all": [condition()], "any": [1]}, "filter.any.0", "must be an object"),
        ({"all": [{"any": [{"none": []}]}]}, "filter.all.0.any.0.none", "at least one"),
        ({"all": [condition("like", "r")]}, "filter.all.0", "'like' is unknown; a condition has"),
        ({"all": [{"field": "a"}]}, "filter.all.0", "a condition has one of eq, in"),
        ({"all": [condition() | {"lt": 3}]}, "filter.all.0", "a condition has one of"),
        ({"all": [condition(field="")]}, "filter.all.0.field", "the name of"),
        ({"all": [condition(field=7)]}, "filter.all.0.field", "the name of"),
        ({"all": [condition(value=None)]}, "filter.all.0.eq", "must be a string, a number"),
        ({"all": [condition(value=["red"])]}, "filter.all.0.eq", "must be a string, a number"),
        ({"all": [condition("in", "red")]}, "filter.all.0.in", "must be a list"),
        ({"all": [condition("in", [])]}, "filter.all.0.in", "at least one value"),
        ({"all": [condition("in", ["1", 1])]}, "filter.all.0.in", "number and string"),
        ({"all": [condition("in", [True, 1])]}, "filter.all.0.in", "boolean and number"),
        ({"all": [condition("lt", "3")]}, "filter.all.0.lt", "must be a number"),
        ({"all": [condition("gte", True)]}, "filter.all.0.gte", "must be a number"),
        ({"all": [condition("exists", 1)]}, "filter.all.0.exists", "true or false"),
        ({"all": [condition(value=LARGEST_INTEGER + 1)]}, "filter.all.0.eq", "at most"),
        (nested(MOST_LEVELS + 1), ".none.0" * MOST_LEVELS, "groups within groups"),
        ({"all": [condition()] * 101}, "filter.all.100", "more than 100"),
        ({"any": [condition("in", ["x"] * 101)]}, "filter.any.0", "more than 100"),
    ],
)
def test_a_wrong_filter_is_refused_where_it_is_wrong(
    document: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        parse(document, at="filter", most=100)
    assert refused.value.field.removeprefix("filter") == field.removeprefix("filter")


def test_equal_filters_are_one_key() -> None:
    document = {"all": [condition(), nested(MOST_LEVELS - 1)], "any": [condition("lt", 2.5)]}
    first, second = (parse(document, at="filter", most=100) for _ in range(2))
    assert first == second and hash(first) == hash(second)
    assert first != parse({"all": [condition(value="blue")]}, at="filter", most=100)
    of_one, of_true = (
        parse({"all": [condition(value=value)]}, at="filter", most=100) for value in (1, True)
    )
    assert of_one != of_true


def test_metadata_are_kept_with_tuples_and_counted() -> None:
    metadata = as_metadata({"size": ["s", "médium"], "price": 3, "sold": False, "hue": "red"})
    assert metadata == {"size": ("s", "médium"), "price": 3, "sold": False, "hue": "red"}
    assert list_items(metadata) == 2
    assert metadata_bytes(metadata) == 4 + 1 + 7 + 5 + 8 + 4 + 8 + 3 + 3
    with pytest.raises((TypeError, ValueError)):
        as_metadata(None)  # type: ignore[arg-type]
