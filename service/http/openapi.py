"""The OpenAPI document, made from the endpoints that are served, and the page that shows it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from service.http import problems
from service.http.endpoint import HEADER_PARAMETER, Endpoint
from service.http.middleware import SCOPE_KEY, answer_headers
from service.http.problems import Problem
from service.http.request_body import JSON, NDJSON

SCRIPT = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui-bundle.js"
STYLE = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui.css"
_INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
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
    """Return the OpenAPI 3.1 document of all endpoints.

    `keys` says whether clients need an API key or token.
    """
    types = {kind for endpoint in endpoints for kind in _types(endpoint)} | {Problem}
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in sorted(types, key=str)],
        ref_template="#/components/schemas/{model}",
    )
    by_type = {kind: schema for (kind, _), schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _PATH_PARAMETER.sub(r"{\1}", endpoint.path)
        for method in sorted(endpoint.methods):  # GET, HEAD
            paths.setdefault(path, {})[method.lower()] = _operation(
                endpoint, path, by_type, method=method, body_bytes=body_bytes, keys=keys
            )
    bearer = {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, or a JSON Web Token where the service verifies them.",
    }
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
    """Yield the types of bodies, answers and lines, which become the document's schemas."""
    found = (endpoint.body, endpoint.answer, endpoint.line, endpoint.line_answer)
    return (kind for kind in found if kind is not None)


def _operation(
    endpoint: Endpoint[Any],
    path: str,
    schemas: dict[Any, Any],
    *,
    method: str,
    body_bytes: int,
    keys: bool,
) -> dict[str, Any]:
    name = re.sub(r"\W", "_", f"{endpoint.handler.__name__}{path}")
    of_head = method == "HEAD"
    operation: dict[str, Any] = {
        "summary": f"{endpoint.summary} (header alone)" if of_head else endpoint.summary,
        "operationId": f"{name}_{method.lower()}",
    }
    description = [endpoint.description] if endpoint.description else []
    if endpoint.scope:
        description.append(
            f"Needs an API key or token with the scope `{endpoint.scope}` where the service has API"
            " keys or verifies tokens."
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
            content[NDJSON] = {"schema": schemas[endpoint.line]}
        operation["requestBody"] = {
            "description": f"At most {body_bytes} bytes of JSON; more is a 413. It may be sent"
            " with `Content-Encoding: gzip`; another coding is a 415.",
            "required": endpoint.body_required,
            "content": content,
        }
    operation["responses"] = responses = _responses(endpoint, schemas)
    if of_head:
        for response in responses.values():
            del response["content"]
    return operation


def _parameters(endpoint: Endpoint[Any]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of a request: in the path, the query string and the headers."""
    for name in _PATH_PARAMETER.findall(endpoint.path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "description": f"The {name.removesuffix('_id')}'s id, percent-encoded; it may hold"
            " slashes.",
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
        content[NDJSON] = {"schema": schemas[endpoint.line_answer]}
    refusal = {problems.MEDIA_TYPE: {"schema": schemas[Problem]}}
    return {
        "200": {"description": "Success", "content": content},
        **{
            str(status): {"description": HTTPStatus(status).phrase, "content": refusal}
            for status in endpoint.problem_statuses
        },
    }


def docs_page(title: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of GET /docs: Swagger UI from a public CDN.

    Its content security policy allows only the CDN's two files and the page's own script,
    identified by its hash.
    """
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=title,
        swagger_js_url=SCRIPT,
        swagger_css_url=STYLE,
        swagger_favicon_url="data:,",
    )
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
        for script in _INLINE.findall(page.body)
    ]
    policy = (
        "default-src 'none'",
        f"script-src {SCRIPT} {' '.join(hashes)}",
        f"style-src {STYLE} 'unsafe-inline'",  # Swagger UI sets styles of single elements
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    headers = answer_headers("; ".join(policy))

    async def show(request: Request) -> Response:
        request.scope[SCOPE_KEY] = headers
        return page

    return show
