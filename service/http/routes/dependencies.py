"""What every route stands on, and how routes are documented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request
from pydantic import BaseModel, TypeAdapter

from service.engine.engine import Engine
from service.http import schemas
from service.http.auth import Access
from service.http.problems import MEDIA_TYPE
from service.http.request_body import JSON, NDJSON
from service.settings import Limits
from service.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The engine and what guards and watches it."""

    engine: Engine
    limits: Limits
    access: Access
    telemetry: Telemetry
    draining: Callable[[], bool]  # whether the process was told to end

    def scope(self, name: str) -> Any:
        """A dependency that lets only API keys with this scope pass."""

        async def check(request: Request) -> None:
            header = request.headers.get("authorization")
            request.state.key_name = self.access.check(header, name)

        return Depends(check)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented refusals of a route."""
    content = {MEDIA_TYPE: {"schema": schemas.Problem.model_json_schema()}}
    return {status: {"description": "Problem", "content": content} for status in statuses}


def idempotency_header() -> dict[str, Any]:
    """The header that lets a write be repeated safely, in OpenAPI."""
    description = (
        "A repeated request with the same key and content gets the first one's answer and changes"
        " nothing; with other content it is a 409. Kept for a day."
    )
    schema = {"type": "string", "minLength": 1, "maxLength": 255}
    parameter = {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}
    return {"parameters": [{**parameter, "description": description}]}


def body(
    model: type[BaseModel], *, line: type[BaseModel] | None = None, required: bool = True
) -> dict[str, Any]:
    """A request body in OpenAPI, and a line of it where it may be a stream.

    Bodies are read by `read_json` and `LabelStream`, so FastAPI does not see them.
    """
    content = {JSON: {"schema": _schema(model)}}
    if line is not None:
        content[NDJSON] = {"schema": _schema(line)}
    return {"requestBody": {"required": required, "content": content}}


def answer_lines(line: Any) -> dict[str, Any]:
    """The answer to a stream in OpenAPI, beside the route's own model."""
    return {"content": {NDJSON: {"schema": _schema(line)}}}


def _schema(model: Any) -> dict[str, Any]:
    schema = TypeAdapter(model).json_schema()
    return dict(_inlined(schema, schema.pop("$defs", {})))


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its local references replaced by what they name."""
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(part, definitions) for name, part in schema.items()}
