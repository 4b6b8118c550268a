"""Filters for tests, and what they mean, label by label."""

from collections.abc import Mapping
from typing import Any

from service.core.label_filter import Condition, LabelFilter, parse

FILTERS = tuple(
    parse(document, at="filter", most=100)
    for document in (
        {"all": [{"field": "bid", "eq": "0.10"}]},
        {"none": [{"field": "bid", "in": ["0.10", "x"]}]},
        {"any": [{"field": "price", "gt": 1}, {"field": "sizes", "eq": "m"}]},
        {"all": [{"field": "price", "lte": 1}, {"none": [{"field": "bid", "exists": True}]}]},
        {"all": [{"field": "sizes", "exists": True}], "none": [{"field": "price", "eq": True}]},
        {"all": [{"field": "price", "eq": 1}]},
        {"all": [{"field": "price", "eq": True}]},
        {"all": [{"field": "price", "exists": False}]},
        {"any": [{"field": "price", "in": [2.5, 1]}]},
        {"all": [{"field": "color", "eq": "red"}]},
    )
)


def passes(node: Condition | LabelFilter, metadata: Mapping[str, Any]) -> bool:
    """Return whether a label with some metadata passes."""
    if isinstance(node, LabelFilter):
        of_all, of_any, of_none = (
            [passes(one, metadata) for one in nodes] for nodes in (node.all, node.any, node.none)
        )
        return all(of_all) and (not node.any or any(of_any)) and not any(of_none)
    value, wanted = metadata.get(node.field), node.values[0]
    if node.operator == "exists":
        return (value is not None) is wanted
    if node.operator in ("eq", "in"):
        listed = value if isinstance(value, tuple) else (value,)
        return any(_equal(one, other) for one in listed for other in node.values)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    holds = {
        "lt": value < wanted, "lte": value <= wanted, "gt": value > wanted, "gte": value >= wanted,
    }  # fmt: skip
    return bool(holds[node.operator])


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other
