"""How many values a JSON body holds, found out before it is parsed.

A body can be short in bytes and long in values: 4 MB hold a million of them. The parser builds all
of them in one call that keeps the interpreter's lock, a tenth of a second in which not even a probe
is answered. So a body with more values than its model could accept is refused by counting them.

What is counted are the marks `,`, `[`, `{` and `:` outside strings. Of the first three there are at
least as many as values and names, but for one; of the last one as many as names, which cost most.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from service.core.errors import InvalidInput

FEW = 20_000  # values, which the parser builds in some milliseconds; so many are never refused

# A string without escapes, or a mark in one of two groups.
_STRING_OR_MARK = re.compile(rb'"[^"]*+"?|([,\[{])|(:)')
_VALUE = 1  # the group of marks of values


@dataclass(frozen=True, kw_only=True)
class MostValues:
    """The most marks that a document may have: `values` of `,`, `[` and `{`, `names` of `:`.

    They are infinite where a list or an object has no greatest length.
    """

    values: float = 0
    names: float = 0

    def require(self, content: bytes, *, what: str) -> None:
        """Raise `InvalidInput` if `content` has more; not for the event loop.

        The lock changes hands while strings are told from marks, which is done only where it
        matters.
        """
        values = sum(content.count(mark) for mark in (b",", b"[", b"{"))
        if values <= self.values and content.count(b":") <= self.names:
            return
        # So that a string ends with the next quotation mark.
        content = content.replace(rb"\\", b"__").replace(rb"\"", b"__")
        left = {_VALUE: self.values, _VALUE + 1: self.names}
        for found in _STRING_OR_MARK.finditer(content):
            if found.lastindex:
                left[found.lastindex] -= 1
                if left[found.lastindex] < 0:
                    raise InvalidInput(
                        f"holds more values than this {what} may have: at most {self.values:.0f},"
                        f" and {self.names:.0f} names",
                        field=what,
                    )


def most_values(model: type[BaseModel]) -> MostValues:
    """The most marks of a document that `model` accepts, at least `FEW` of each kind."""
    schema = model.model_json_schema()
    most = _most(schema, schema.get("$defs", {}))
    return MostValues(values=max(FEW, most.values), names=max(FEW, most.names))


def _most(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> MostValues:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        choices = [_most(choice, definitions) for choice in schema["anyOf"]]
        return max(choices, key=lambda most: most.values)
    if schema.get("type") == "array":
        length = float(schema.get("maxItems", math.inf))
        each = _most(schema.get("items", {}), definitions)
        names = each.names and length * each.names
        return MostValues(values=1 + length * (1 + each.values), names=names)
    if "properties" in schema:
        fields = [_most(field, definitions) for field in schema["properties"].values()]
        return MostValues(
            values=1 + sum(1 + field.values for field in fields),
            names=sum(1 + field.names for field in fields),
        )
    if schema.get("type") == "object":
        length = float(schema.get("maxProperties", math.inf))
        return MostValues(values=1 + length, names=length)
    return MostValues()
