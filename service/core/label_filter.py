"""Filters on the metadata of labels, as requests write them.

A filter is a group `{"all": [...], "any": [...], "none": [...]}` of conditions and further groups.
A label passes if all of `all`, at least one of `any` and none of `none` hold; a list that is left
out holds. A condition is `{"field": NAME, OPERATOR: VALUE}`, with one of these operators:

| operator                 | holds if the label's value of this field                          |
|--------------------------|-------------------------------------------------------------------|
| `eq`                     | is the string, number or boolean, or a list with this string      |
| `in`                     | equals one of a list of such values, all of one type              |
| `lt`, `lte`, `gt`, `gte` | is a number below or above                                        |
| `exists`                 | is there (`true`), or is not (`false`)                            |

Values of different types are never equal: the number 1 is neither `"1"` nor `true`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.core.errors import InvalidInput, echoed

# The values of a label's metadata, by name. Lists hold strings.
MetadataValue = str | float | bool | tuple[str, ...]
Metadata = Mapping[str, MetadataValue]

Bools = NDArray[np.bool_]
OPERATORS = ("eq", "in", "lt", "lte", "gt", "gte", "exists")
Value = str | float | bool
OF_KIND = "of kind"
GROUPS = ("all", "any", "none")
MOST_LEVELS = 8  # of groups within groups
MOST_VALUES = 1_000  # conditions and values of one filter, by default
# The default limits of one label's metadata.
MOST_ENTRIES = 64  # also of the items of its lists together
MOST_CHARACTERS = 1_024  # per name or value
MOST_METADATA_BYTES = 16_384  # names and values, in UTF-8
CONDITION_WORK = 20  # of a condition, compared with a label that is looked up by its id
# Of a number. Larger integers have no float of their own, so two of them might be equal.
LARGEST_INTEGER = 2**53

# For which of n labels a condition holds: [n], or [1] if it holds for all or for none.
HoldsWhere = Callable[["Condition"], Bools]


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One condition on a field. `values` has one value, or those of `in`, of one `kind`.

    Without the kind, conditions on 1 and on true would be equal in Python. A condition with the
    operator `OF_KIND`, which no request has, holds for every value of the kind.
    """

    field: str
    operator: str  # one of OPERATORS, or OF_KIND
    values: tuple[Value, ...]
    kind: str = "boolean"

    def document(self) -> dict[str, Any]:
        """Return the condition as JSON."""
        given = list(self.values) if self.operator == "in" else self.values[0]
        return {"field": self.field, self.operator: given}


@dataclass(frozen=True, kw_only=True)
class LabelFilter:
    """A group of conditions and groups; see the module."""

    all: tuple[Condition | LabelFilter, ...] = ()
    any: tuple[Condition | LabelFilter, ...] = ()
    none: tuple[Condition | LabelFilter, ...] = ()

    def __hash__(self) -> int:
        """Return a hash that is computed once: requests are grouped by it."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.all, self.any, self.none))

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields in the order of the filter, each once."""
        return tuple(dict.fromkeys(condition.field for condition in self.conditions()))

    @cached_property
    def work(self) -> int:
        """The cost of applying the filter; a lookup of one label costs 1."""
        return sum(CONDITION_WORK + len(one.values) for one in self.conditions())

    def document(self) -> dict[str, Any]:
        """Return the filter as JSON."""
        lists = {"all": self.all, "any": self.any, "none": self.none}
        return {name: [node.document() for node in nodes] for name, nodes in lists.items() if nodes}

    def passing(self, holds: HoldsWhere) -> Bools:
        """Return which of n labels pass: [n], or [1] if `holds` returned nothing else."""

        def of(node: Condition | LabelFilter) -> Bools:
            return holds(node) if isinstance(node, Condition) else node.passing(holds)

        lists = []
        if self.all:
            lists.append(reduce(np.logical_and, map(of, self.all)))
        if self.any:
            lists.append(reduce(np.logical_or, map(of, self.any)))
        if self.none:
            lists.append(~reduce(np.logical_or, map(of, self.none)))
        passing: Bools = reduce(np.logical_and, lists)
        return passing

    def conditions(self) -> Iterator[Condition]:
        """Yield all conditions, also those of groups within."""
        for node in (*self.all, *self.any, *self.none):
            if isinstance(node, Condition):
                yield node
            else:
                yield from node.conditions()


COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "lt": np.less,
    "lte": np.less_equal,
    "gt": np.greater,
    "gte": np.greater_equal,
}


def kind_of(value: object) -> str:
    """Return the type of a value as messages name it."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def parse(document: Any, *, at: str, most: int) -> LabelFilter:
    """Return the filter that a request has as JSON.

    `at` is the path of the field, and `most` the most conditions and values together. Raises
    `InvalidInput` with the path of what is wrong.
    """
    return _Parser(most).group(document, at, 1)


def parse_json(text: str, *, at: str, most: int) -> LabelFilter:
    """Return the filter that `text` holds as JSON; arguments and errors are those of `parse`."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"is not JSON: {error}", field=at) from error
    return parse(document, at=at, most=most)


class _Parser:
    """Counts conditions and values while it parses one filter."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def group(self, document: Any, at: str, level: int) -> LabelFilter:
        if not isinstance(document, dict):
            raise InvalidInput("must be an object with `all`, `any` or `none`", field=at)
        if level > MOST_LEVELS:
            raise InvalidInput(f"has more than {MOST_LEVELS} groups within groups", field=at)
        for name in document:
            if name not in GROUPS:
                raise InvalidInput(
                    f"{echoed(name)} is unknown; a group has `all`, `any` and `none`, a condition"
                    " `field` and an operator",
                    field=at,
                )
        if not document:
            raise InvalidInput("has no conditions; give `all`, `any` or `none`", field=at)
        return LabelFilter(
            **{name: self._nodes(nodes, f"{at}.{name}", level) for name, nodes in document.items()}
        )

    def _nodes(self, nodes: Any, at: str, level: int) -> tuple[Condition | LabelFilter, ...]:
        if not isinstance(nodes, list) or not nodes:
            raise InvalidInput("must be a list with at least one condition", field=at)
        return tuple(
            self._condition(node, f"{at}.{place}")
            if isinstance(node, dict) and "field" in node
            else self.group(node, f"{at}.{place}", level + 1)
            for place, node in enumerate(nodes)
        )

    def _condition(self, document: dict[str, Any], at: str) -> Condition:
        name = document["field"]
        if not isinstance(name, str) or not name:
            raise InvalidInput("must be the name of a metadata field", field=f"{at}.field")
        others = [one for one in document if one != "field"]
        if len(others) != 1 or others[0] not in OPERATORS:
            wrong = [one for one in others if one not in OPERATORS]
            why = f"{echoed(wrong[0])} is unknown; " if wrong else ""
            raise InvalidInput(f"{why}a condition has one of {', '.join(OPERATORS)}", field=at)
        operator, given = others[0], document[others[0]]
        values = given if operator == "in" else [given]
        path = f"{at}.{operator}"
        if not isinstance(values, list) or not values:
            raise InvalidInput("must be a list with at least one value", field=path)
        self._count(len(values), at)
        if operator == "exists":
            if not isinstance(given, bool):
                raise InvalidInput("must be true or false", field=path)
        elif operator in COMPARED:
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise InvalidInput("must be a number", field=path)
        else:
            _require_values(values, path)
        kind = kind_of(values[0])
        return Condition(field=name, operator=operator, values=tuple(values), kind=kind)

    def _count(self, values: int, at: str) -> None:
        self._left -= values
        if self._left < 0:
            raise InvalidInput(
                f"the filter has more than {self._most:,} conditions and values", field=at
            )


def _require_values(values: Sequence[Any], at: str) -> None:
    for value in values:
        if not isinstance(value, str | int | float):
            raise InvalidInput("must be a string, a number, true or false", field=at)
    kinds = sorted(set(map(kind_of, values)))
    if len(kinds) > 1:
        raise InvalidInput(f"mixes types: {' and '.join(kinds)}", field=at)
    if any(not isinstance(value, str) and abs(value) > LARGEST_INTEGER for value in values):
        raise InvalidInput(f"must be at most {LARGEST_INTEGER:,} in size", field=at)


def as_metadata(document: Mapping[str, Any]) -> Metadata:
    """Return metadata as it is kept, from JSON: a list becomes a tuple.

    Raises `TypeError` or `ValueError` if `document` is no object.
    """
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in dict(document).items()
    }


def list_items(metadata: Mapping[str, MetadataValue | None]) -> int:
    """Count the items of all lists."""
    return sum(len(value) for value in metadata.values() if isinstance(value, tuple | list))


def metadata_bytes(metadata: Mapping[str, MetadataValue | None]) -> int:
    """Count the bytes of names and values: texts in UTF-8, 8 for a number or a boolean."""
    return sum(len(name.encode()) + _bytes_of(value) for name, value in metadata.items())


def _bytes_of(value: MetadataValue | None) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return sum(map(_bytes_of, value)) if isinstance(value, tuple | list) else 8


def json_bytes(metadata: Metadata) -> int:
    """Estimate the bytes of metadata as JSON."""
    return metadata_bytes(metadata) + 6 * len(metadata) + 3 * list_items(metadata)
