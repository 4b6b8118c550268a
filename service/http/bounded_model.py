"""Validation that stops early: a body with millions of wrong fields costs as little as a few.

Pydantic collects all errors and holds the GIL meanwhile: 1.4 s for a body of 4 MB with 300,000
unknown fields. The JSON parser also holds the GIL for a whole document: a tenth of a second for the
million values that 4 MB can hold. Therefore:

1. Values are counted, and a body with more than its model could accept is refused (`MostValues`).
2. The entries of a long list are parsed and validated one by one, until there are more errors than
   are shown (`body_parts`).
3. Excess content, such as most unknown fields, is removed before pydantic sees it.

Messages say in plain words what is wrong; for an unknown field, they list the known ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
import orjson
from annotated_types import MaxLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from service.core.errors import InvalidFields, InvalidInput, echoed
from service.core.wrong_values import UNKNOWN, what_is_wrong
from service.http.problems import SHOWN_FIELDS

FEW = 20_000  # values that are never refused: the parser takes some milliseconds for them

# A string without escapes, or a structural character in one of two groups.
_STRING_OR_MARK = re.compile(rb'"[^"]*+"?|([,\[{])|(:)')
_VALUE = 1  # the group of characters that count values
_NAME = "[key]"  # how pydantic's path of a wrong name in an object ends
MOST = SHOWN_FIELDS + 1  # errors, after which validation stops: the answer shows no more

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class MostValues:
    """Limits on a document's characters `,`, `[` and `{` (`values`) and `:` (`names`)."""

    values: float = 0
    names: float = 0

    def require(self, content: bytes, *, what: str) -> None:
        """Raise `InvalidInput` if `content` has more. Never call this in the event loop.

        Characters within strings are excluded only if the count is too high without that.
        """
        values = sum(content.count(mark) for mark in (b",", b"[", b"{"))
        if values <= self.values and content.count(b":") <= self.names:
            return
        # Replace escapes, so a string ends with the next quotation mark.
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
    """Return the limits that every document accepted by `model` keeps, at least `FEW` each."""
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
        # Values may be lists; `_fits` in request_models lets all lists hold `length` items at most.
        return MostValues(values=1 + 2 * length, names=length)
    return MostValues()


def body_parts(
    content: bytes, entries: str, *, known: Collection[str], most: int | None
) -> tuple[dict[str, Any], Iterator[Any]] | None:
    """Split an object with a list of at most `most` entries and no other fields than `known`.

    `entries` is the list's name. Returns the other fields, and an iterator that parses one entry at
    a time. Returns None if `content` has another form or is not JSON, and must be parsed as a
    whole. Raises `orjson.JSONDecodeError` for a malformed field; an entry raises it when it is
    parsed.
    """
    try:
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        if entries not in fields or not fields.keys() <= set(known):
            return None
        listed = msgspec.json.decode(fields.pop(entries), type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    if most is not None and len(listed) > most:
        return None
    parsed = {name: orjson.loads(memoryview(value)) for name, value in fields.items()}
    return parsed, (orjson.loads(memoryview(entry)) for entry in listed)


class BoundedModel(Generic[Model]):
    """A model that validates any document at least as fast as a valid one of the same size."""

    def __init__(self, model: type[Model]) -> None:
        """Wrap a model with at most one list of models. These have only simple fields."""
        self._model = model
        self.most_values = most_values(model)  # checked before a document is parsed
        self._fields = frozenset(model.model_fields)
        self._longest = {name: _longest(info) for name, info in model.model_fields.items()}
        self._objects = [
            name for name, info in model.model_fields.items() if get_origin(info.annotation) is dict
        ]
        self._entries: tuple[str, BoundedModel[BaseModel]] | None = None
        for name, info in model.model_fields.items():
            kind = next(iter(get_args(info.annotation)), None)
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                self._entries = name, BoundedModel(kind)

    def validate(self, document: Any) -> Model:
        """Return the validated document; raises `InvalidFields`."""
        document = self._cut(document) if isinstance(document, dict) else document
        if self._entries is not None and isinstance(document, dict):
            name, model = self._entries
            entries = document.get(name)
            longest = self._longest[name]
            if isinstance(entries, list) and (longest is None or len(entries) <= longest):
                document = {**document, name: self._validated(name, model, entries, document)}
        return self._valid(document)

    def validate_json(self, content: bytes) -> Model:
        """Parse and validate JSON; the list's entries are parsed one by one.

        Raises `InvalidFields`, or `orjson.JSONDecodeError` with the position in the whole content.
        """
        if self._entries is not None:
            name, model = self._entries
            with suppress(orjson.JSONDecodeError):  # its position would be relative to an entry
                parts = body_parts(content, name, known=self._fields, most=self._longest[name])
                if parts is not None:
                    fields = self._cut(parts[0])
                    entries = self._validated(name, model, parts[1], fields)
                    return self._valid({**fields, name: entries})
        return self.validate(orjson.loads(content))

    def _valid(self, document: Any) -> Model:
        try:
            return self._model.model_validate(document)
        except ValidationError as error:
            raise InvalidFields(wrong_fields(error, self._model)) from error

    def _validated(
        self,
        name: str,
        model: BoundedModel[BaseModel],
        entries: Iterable[Any],
        document: Mapping[str, Any],
    ) -> list[Any]:
        """Validate a list up to `MOST` errors; raises `InvalidFields` for it and `document`."""
        valid: list[Any] = []
        wrong: list[tuple[str, str]] = []
        for place, entry in enumerate(entries):
            try:
                valid.append(model.validate(entry))
            except InvalidFields as error:
                above = [name, str(place)]
                wrong += [
                    (".".join([*above, path]), why)
                    if path
                    else (".".join(above), _sentence(above, why))
                    for path, why in error.fields
                ]
                if len(wrong) >= MOST:
                    break
        if not wrong:
            return valid
        try:
            self._valid({**document, name: []})
        except InvalidFields as error:
            wrong += [field for field in error.fields if field[0] != name]
        raise InvalidFields(wrong)

    def _cut(self, document: dict[str, Any]) -> dict[str, Any]:
        """Remove most unknown fields, and most entries of objects that are too long."""
        if len(document) > len(self._fields) + MOST:
            known = {name: document[name] for name in self._fields & document.keys()}
            unknown = (name for name in document if name not in self._fields)
            document = known | {name: document[name] for name in islice(unknown, MOST)}
        for name in self._objects:
            value, longest = document.get(name), self._longest[name]
            if longest is not None and isinstance(value, dict) and len(value) > longest:
                document = {**document, name: dict(islice(value.items(), longest + 1))}
        return document


def wrong_fields(error: ValidationError, model: type[BaseModel]) -> list[tuple[str, str]]:
    """Return path and message of each invalid field; the path of the whole document is empty.

    Messages repeat no values, and shorten the names of fields.
    """
    return [_wrong_field(one, model) for one in error.errors(include_url=False)]


def _wrong_field(error: ErrorDetails, model: type[BaseModel]) -> tuple[str, str]:
    path = [str(part) for part in error["loc"]]
    if path and path[-1] == _NAME:  # the name of an entry is wrong, not its value
        return ".".join(path[:-1]), f"the name {echoed(path[-2])} {what_is_wrong(error)}"
    known = _names(model, path[:-1]) if error["type"] in UNKNOWN else ()
    return ".".join(path), _sentence(path, what_is_wrong(error, known=known))


def _sentence(path: Sequence[str], what: str) -> str:
    """Return a sentence about the field at the end of a path; of a list, with the entry's place."""
    named = next((place for place in reversed(range(len(path))) if not path[place].isdecimal()), 0)
    return f"{echoed('.'.join(path[named:]))} {what}" if path else what


def _names(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the names of the fields of the model at a path."""
    found: Any = model
    for name in path:
        if not name.isdecimal():
            found = _model_within(found.model_fields[name].annotation)
    return list(found.model_fields)


def _model_within(annotation: Any) -> Any:
    """Return the model of a field, such as of a list of models, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(part) for part in get_args(annotation))
    return next((one for one in found if one is not None), None)


def _longest(info: FieldInfo) -> int | None:
    return next((bound.max_length for bound in info.metadata if isinstance(bound, MaxLen)), None)
