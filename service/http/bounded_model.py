"""Validation that stops: a body of millions of wrong fields costs no more than a few of them.

Pydantic collects every error, and holds the interpreter's lock until it has: 1.4 s for a body of
4 MB whose 300,000 fields are all unknown. So what is too much already is cut before, and the
entries of a long list are validated one by one, until there are more errors than are shown.

What is wrong is said in pydantic's words; of an unknown field, also which fields are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, TypeVar, get_args, get_origin

import orjson
from annotated_types import MaxLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from service.core.errors import InvalidFields, echoed
from service.core.unknown_names import is_unknown
from service.http.large.body_parts import body_parts
from service.http.large.body_values import most_values
from service.http.problems import SHOWN_FIELDS

Model = TypeVar("Model", bound=BaseModel)

MOST = SHOWN_FIELDS + 1  # errors, after which one more makes no difference to the answer


class BoundedModel(Generic[Model]):
    """A model whose validation takes as long as a valid document of the same size, at most."""

    def __init__(self, model: type[Model]) -> None:
        """`model` may have one field that is a list of models, whose fields are simple."""
        self._model = model
        self.most_values = most_values(model)  # of a valid document, and of what is parsed
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
        """The validated document; raises `InvalidFields`."""
        document = self._cut(document) if isinstance(document, dict) else document
        if self._entries is not None and isinstance(document, dict):
            name, model = self._entries
            entries = document.get(name)
            longest = self._longest[name]
            if isinstance(entries, list) and (longest is None or len(entries) <= longest):
                document = {**document, name: self._validated(name, model, entries, document)}
        return self._valid(document)

    def validate_json(self, content: bytes) -> Model:
        """As `validate`, of a document that is still JSON; its entries are parsed one by one.

        Raises `InvalidFields`, or `orjson.JSONDecodeError` with the place in the whole content.
        """
        if self._entries is not None:
            name, model = self._entries
            with suppress(orjson.JSONDecodeError):  # whose place is that in an entry
                parts = body_parts(content, name, known=self._fields, most=self._longest[name])
                if parts is not None:
                    fields = self._cut(parts.fields)
                    entries = self._validated(name, model, parts.parsed_entries(), fields)
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
        """The entries of a list; raises `InvalidFields` for those that are wrong and the rest."""
        valid, wrong = _each(name, model, entries)
        if not wrong:
            return valid
        try:
            self._valid({**document, name: []})
        except InvalidFields as error:
            wrong += [field for field in error.fields if field[0] != name]
        raise InvalidFields(wrong)

    def _cut(self, document: dict[str, Any]) -> dict[str, Any]:
        """Without most of the unknown fields, and of the entries of objects that are too long."""
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
    """The invalid fields, by path and message; the path of a whole document is empty.

    No value is repeated, and of the names of unknown fields as much as a message may hold.
    """
    fields = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        (
            ".".join(map(str, field["loc"])),
            _unknown(str(field["loc"][-1]), model)
            if field["type"] == "extra_forbidden" and len(field["loc"]) == 1
            else field["msg"],
        )
        for field in fields
    ]


def _unknown(name: str, model: type[BaseModel]) -> str:
    return f"{echoed(name)} {is_unknown(name, list(model.model_fields))}"


def _each(
    name: str, model: BoundedModel[BaseModel], entries: Iterable[Any]
) -> tuple[list[Any], list[tuple[str, str]]]:
    """The valid entries, and the errors of the others; it stops once there are `MOST` errors."""
    valid: list[Any] = []
    wrong: list[tuple[str, str]] = []
    for place, entry in enumerate(entries):
        try:
            valid.append(model.validate(entry))
        except InvalidFields as error:
            above = f"{name}.{place}"
            wrong += [(f"{above}.{path}" if path else above, why) for path, why in error.fields]
            if len(wrong) >= MOST:
                break
    return valid, wrong


def _longest(info: FieldInfo) -> int | None:
    return next((bound.max_length for bound in info.metadata if isinstance(bound, MaxLen)), None)
