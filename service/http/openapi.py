"""The OpenAPI document, made from the endpoints that are served."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter

from service.http import problems
from service.http.endpoint import Endpoint
from service.http.idempotency import HEADER_PARAMETER
from service.http.problems import Problem
from service.http.request_body import JSON, NDJSON

_PATH_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_KEY_SCHEME = "api_key"
_EVERYWHERE = (
    "Besides what each route documents, any request may be refused before it reaches one, with a"
    " problem document: 400 what is no HTTP, 403 a write with the Origin of another site, 408"
    " a header or body that comes too slowly, 421 a Host that is no name of this service, 431 a"
    " header that is too large, 503 too many connections."
)


def openapi_document(
    endpoints: Sequence[Endpoint[Any]], *, title: str, version: str, body_bytes: int, keys: bool
) -> dict[str, Any]:
    """The OpenAPI 3.1 document of all endpoints, in their order, for a service with API `keys`."""
    types = {kind for endpoint in endpoints for kind in _types(endpoint)} | {Problem}
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in sorted(types, key=str)],
        ref_template="#/components/schemas/{model}",
    )
    by_type = {kind: schema for (kind, _), schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _PATH_PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(
            endpoint, path, by_type, body_bytes=body_bytes, keys=keys
        )
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": _EVERYWHERE},
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {_KEY_SCHEME: bearer},
        },
    }


def _types(endpoint: Endpoint[Any]) -> Iterator[Any]:
    """The types of bodies, answers and lines, which become the document's schemas."""
    stream = endpoint.stream
    found = (endpoint.body, endpoint.answer, stream and stream.line, stream and stream.answer)
    return (kind for kind in found if kind is not None)


def _operation(
    endpoint: Endpoint[Any], path: str, schemas: dict[Any, Any], *, body_bytes: int, keys: bool
) -> dict[str, Any]:
    name = re.sub(r"\W", "_", f"{endpoint.handler.__name__}{path}")
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": f"{name}_{endpoint.method.lower()}",
    }
    description = [endpoint.description] if endpoint.description else []
    if endpoint.scope is not None:
        description.append(
            f"Needs an API key with the scope `{endpoint.scope}` where the service has API keys."
        )
        if keys:
            operation["security"] = [{_KEY_SCHEME: []}]
    if description:
        operation["description"] = " ".join(description)
    if parameters := list(_parameters(endpoint)):
        operation["parameters"] = parameters
    if endpoint.body is not None:
        content = {JSON: {"schema": schemas[endpoint.body]}}
        if endpoint.stream is not None:
            content[NDJSON] = {"schema": schemas[endpoint.stream.line]}
        operation["requestBody"] = {
            "description": f"At most {body_bytes} bytes of JSON; more is a 413.",
            "required": endpoint.body_required,
            "content": content,
        }
    operation["responses"] = _responses(endpoint, schemas)
    return operation


def _parameters(endpoint: Endpoint[Any]) -> Iterator[dict[str, Any]]:
    """What a request says outside its body: in the path, the query string and the headers."""
    for name in _PATH_PARAMETER.findall(endpoint.path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "description": endpoint.path_parameters[name],
        }
    if endpoint.query is not None:
        schema = endpoint.query.model_json_schema()
        for name, field in schema["properties"].items():
            required = name in schema.get("required", ())
            yield {"name": name, "in": "query", "required": required, "schema": field}
    if endpoint.idempotent:
        yield HEADER_PARAMETER


def _responses(endpoint: Endpoint[Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    schema = {"type": "string"} if endpoint.answer is None else schemas[endpoint.answer]
    content = {endpoint.answer_media_type: {"schema": schema}}
    if endpoint.stream is not None:
        content[NDJSON] = {"schema": schemas[endpoint.stream.answer]}
    refusal = {problems.MEDIA_TYPE: {"schema": schemas[Problem]}}
    return {
        "200": {"description": "Success", "content": content},
        **{
            str(status): {"description": HTTPStatus(status).phrase, "content": refusal}
            for status in endpoint.problem_statuses
        },
    }
