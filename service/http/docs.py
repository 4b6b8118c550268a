"""The pages that document the API: /openapi.json, and /docs, which shows it in a browser."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from service.http.responses import json_response

_SWAGGER_UI = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5"
_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1.0">
<title>Keymatch: HTTP API</title>
<link rel="stylesheet" href="{_SWAGGER_UI}/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{_SWAGGER_UI}/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({{url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true}});
</script>
</body>
</html>
"""


def documentation_routes(document: Callable[[], dict[str, Any]]) -> list[Route]:
    """Routes to the OpenAPI `document`, which is made at the first request for it."""
    document = cache(document)

    async def openapi(_request: Request) -> Response:
        return json_response(document())

    async def docs(_request: Request) -> Response:
        return HTMLResponse(_PAGE)

    async def root(_request: Request) -> Response:
        return RedirectResponse("/docs")

    return [Route("/openapi.json", openapi), Route("/docs", docs), Route("/", root)]
