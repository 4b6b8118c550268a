"""Says in plain words what is wrong with a value that pydantic has refused.

A message is the rest of a sentence that begins with the name of the field: "must be a string, not a
list". It names kinds, limits and known names, but never repeats the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

COMPARED_CHARACTERS = 100  # a longer name is not a typo, and comparing it takes long

# What a field must be, by pydantic's type of error.
KINDS = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "a table of keys",
    "path_type": "a path",
}
# Other sentences; the names in braces are those of the error's context.
SENTENCES = {
    "missing": "is missing",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "has more than {max_length} characters",
    "string_pattern_mismatch": "does not have the form {pattern}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "has more than {max_length} entries",
}
_OF_ONE = {"string_too_short": "must not be empty", "too_short": "must have at least one entry"}
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
CHOICES = ("literal_error", "enum")
OWN = ("value_error", "assertion_error")  # raised by a validator, with a sentence of its own


def what_is_wrong(error: ErrorDetails, *, known: Sequence[str] = ()) -> str:
    """Return what is wrong with the field of an error; `known` are names next to an unknown one."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in KINDS:
        return f"must be {KINDS[kind]}{_but_is(error['input'], KINDS[kind])}"
    if kind in _OF_ONE and context["min_length"] == 1:
        return _OF_ONE[kind]
    if kind in SENTENCES:
        return SENTENCES[kind].format_map({name: _shown(value) for name, value in context.items()})
    if kind in CHOICES:
        return f"must be {context['expected']}{_meant(error['input'], context['expected'])}"
    if kind in UNKNOWN:
        return is_unknown(str(error["loc"][-1]), known)
    if kind in OWN:
        return str(context["error"])
    return "is not as documented"


def is_unknown(name: str, known: Sequence[str]) -> str:
    """Return the end of a sentence that begins with an unknown `name`; it suggests other names."""
    if not known:
        return "is unknown"
    return f"is unknown; known are {', '.join(known)}{_nearest(name, known)}"


def _nearest(name: str, known: Sequence[str]) -> str:
    meant = get_close_matches(name, known, 1) if len(name) <= COMPARED_CHARACTERS else []
    return "".join(f"; did you mean {other}?" for other in meant)


def _meant(value: object, expected: str) -> str:
    """Suggest one of the expected values, which pydantic lists as "'a', 'b' or 'c'"."""
    return _nearest(value, re.findall("'([^']*)'", expected)) if isinstance(value, str) else ""


def _but_is(value: object, wanted: str) -> str:
    """Return how the kind of a value differs from the wanted one; empty if it does not."""
    if value is None:
        kind = "null"
    elif isinstance(value, bool):
        kind = "a boolean"
    elif isinstance(value, int):
        kind = "a number"
    elif isinstance(value, float):
        return " without a decimal point" if wanted == "a whole number" else ", not a number"
    elif isinstance(value, str):
        kind = "a string"
    elif isinstance(value, list | tuple):
        kind = "a list"
    elif isinstance(value, Mapping):
        kind = "an object"
    else:
        return ""
    return f", not {kind}"


def _shown(value: Any) -> str:
    """Return a limit as people write it: 1000 for 1000.0, and no exponents."""
    if isinstance(value, float):
        return f"{value:.12f}".rstrip("0").rstrip(".")
    return str(value)
