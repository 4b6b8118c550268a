"""What every route stands on, and how routes are documented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request
from pydantic import BaseModel

from service import schemas
from service.access import Access
from service.engine import Engine
from service.problems import MEDIA_TYPE
from service.settings import Limits
from service.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The engine and what guards and watches it."""

    engine: Engine
    limits: Limits
    access: Access
    telemetry: Telemetry

    def scope(self, name: str) -> Any:
        """A dependency that lets only API keys with this scope pass."""

        async def check(request: Request) -> None:
            self.access.check(request.headers.get("authorization"), name)

        return Depends(check)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented refusals of a route."""
    content = {MEDIA_TYPE: {"schema": schemas.Problem.model_json_schema()}}
    return {status: {"description": "Problem", "content": content} for status in statuses}


def body(model: type[BaseModel]) -> dict[str, Any]:
    """A request body in OpenAPI; bodies are read by `read_json`, so FastAPI does not see them."""
    schema = model.model_json_schema()
    schema = _inlined(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its local references replaced by what they name."""
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(part, definitions) for name, part in schema.items()}
