"""How every refusal looks on the wire: RFC 9457, and nothing of our insides."""

from typing import Any
from urllib.parse import unquote_plus

import httpx

INSIDES = ("Traceback", ".py", "site-packages", "Error:", "service.", "sqlite", " at 0x")


def assert_problem(
    answer: httpx.Response, status: int, *, field: str | None = None
) -> dict[str, Any]:
    """The answer is a problem document of this status, and names `field` among its errors."""
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


def assert_no_insides(answer: httpx.Response) -> None:
    """A body tells nothing of files, modules or exceptions but what the client itself said."""
    request = answer.request
    said = unquote_plus(str(request.url)) + request.read().decode(errors="replace")
    for word in INSIDES:
        assert word not in answer.text or word in said, answer.text[:500]
