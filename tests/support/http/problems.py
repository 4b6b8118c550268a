"""Check that errors are problem documents (RFC 9457) and reveal no internals."""

from typing import Any
from urllib.parse import unquote_plus

import httpx

# Also pydantic's words, which speak of classes and of Python.
INTERNALS = (
    *("Input should", "should be a valid", "Value error", "instance of"),
    *("Traceback", ".py", "site-packages", "Error:", "service.", "sqlite", " at 0x"),
)


def assert_problem(
    answer: httpx.Response, status: int, *, field: str | None = None
) -> dict[str, Any]:
    """Assert that the answer is a problem document of this status with an error of `field`."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"]
    problem = answer.json()
    assert {"type", "title", "status", "detail"} <= problem.keys() <= {
        "type", "title", "status", "detail", "errors"
    }  # fmt: skip
    assert problem["status"] == status
    assert problem["type"].startswith("urn:keymatch:problem:")
    assert problem["title"] and problem["detail"]
    found = problem.get("errors", [])
    assert all(one["message"] for one in found)
    if field is not None:
        assert field in [one["field"] for one in found], problem
    return problem


def assert_no_internals(answer: httpx.Response) -> None:
    """Assert that the body names no file, module or exception that the client did not send."""
    request = answer.request
    sent = unquote_plus(str(request.url)) + request.read().decode(errors="replace")
    for word in INTERNALS:
        assert word not in answer.text or word in sent, answer.text[:500]
