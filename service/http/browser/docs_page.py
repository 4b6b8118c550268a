"""The page /docs: Swagger UI from a public CDN, and nothing else, under a policy of its own."""

from __future__ import annotations

import base64
import hashlib
import re

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.http.browser.headers import SCOPE_KEY, answer_headers

SCRIPT = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui-bundle.js"
STYLE = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui.css"
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class DocsPage:
    """The page and its content security policy."""

    def __init__(self, *, title: str) -> None:
        """Only the CDN's two files and the page's own script, known by its hash, may be used."""
        page = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=title,
            swagger_js_url=SCRIPT,
            swagger_css_url=STYLE,
            swagger_favicon_url="data:,",
        )
        self._html = bytes(page.body)
        self._headers = answer_headers(_policy(self._html.decode()))

    async def show(self, request: Request) -> Response:
        """Answer GET /docs."""
        request.scope[SCOPE_KEY] = self._headers
        return HTMLResponse(self._html)


def _policy(html: str) -> str:
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in _INLINE.findall(html)
    ]
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {SCRIPT} {' '.join(hashes)}",
            f"style-src {STYLE} 'unsafe-inline'",  # Swagger UI sets styles of single elements
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
