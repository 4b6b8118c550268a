"""Errors on the wire: RFC 9457 problem details, from one table of exception to status."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.responses import Response

from service.core import errors
from service.core.errors import KeymatchError, Overloaded

MEDIA_TYPE = "application/problem+json"
INVALID = "Invalid field"
SHOWN_FIELDS = 100  # wrong fields that one answer lists
SHOWN_CHARACTERS = 200  # of a field's name, which may be the client's own

# The first class that an exception is an instance of decides. The fourth column says whether the
# exception's own message may be sent: only where it was written for the client.
STATUS_TABLE: tuple[tuple[type[KeymatchError], int, str, bool], ...] = (
    (errors.MalformedRequest, 400, "Malformed JSON", True),
    (errors.Unauthenticated, 401, "API key needed", True),
    (errors.Forbidden, 403, "Scope missing", True),
    (errors.KeyReused, 409, "Idempotency key reused", True),
    (errors.Busy, 409, "Already going on", True),
    (errors.UnknownLabel, 404, "Unknown label", True),
    (errors.BodyTooLarge, 413, "Body too large", True),
    (errors.UnsupportedMedia, 415, "Unsupported content type", True),
    (errors.InvalidInput, 422, INVALID, True),
    (errors.Overloaded, 429, "Too many requests wait", True),
    (errors.NotReady, 503, "Not ready", True),
    (errors.BundleMissing, 422, "Bundle missing", False),
    (errors.BundleError, 422, "Bundle refused", False),
    (errors.SealError, 503, "The snapshot cannot be written", False),
    (errors.LogError, 503, "The label log cannot be written", False),
    (errors.DeadlineExceeded, 504, "Deadline passed", True),
    (errors.MemoryFull, 507, "Memory full", True),
)
REASONS = {
    errors.Overloaded: "queue_full",
    errors.DeadlineExceeded: "deadline",
    errors.NotReady: "not_ready",
    errors.MemoryFull: "memory_full",
    errors.InvalidInput: "invalid",
    errors.RequestRefused: "refused",
}

log = logging.getLogger("keymatch")


def problem(
    status: int,
    title: str,
    detail: str = "",
    *,
    fields: Sequence[dict[str, str]] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """The answer with one problem document."""
    return _response(document(status, title, detail, fields=fields), headers)


def document(
    status: int, title: str, detail: str = "", *, fields: Sequence[dict[str, str]] = ()
) -> dict[str, Any]:
    """One problem document."""
    found: dict[str, Any] = {
        "type": f"urn:keymatch:problem:{title.lower().replace(' ', '-')}",
        "title": title,
        "status": status,
        "detail": detail or title,
    }
    return {**found, "errors": list(fields)} if fields else found


def from_error(error: KeymatchError) -> Response:
    """The answer to a refused or failed request."""
    return _response(error_document(error), _headers(error))


def error_document(error: Exception) -> dict[str, Any]:
    """What a refusal or failure tells the client; what must not be told is logged."""
    row = next((row for row in STATUS_TABLE if isinstance(error, row[0])), None)
    if row is None:
        return defect_document(error)
    _, status, title, speaks = row
    if not speaks:
        log.error(title, extra={"cause": str(error)})
    if isinstance(error, errors.UnknownLabels):
        return _invalid([((field,), message) for field, message in error.fields], "body")
    field = getattr(error, "field", "")
    return document(
        status,
        title,
        str(error) if speaks else "",
        fields=[{"field": field, "message": str(error)}] if field and speaks else (),
    )


def from_validation(error: ValidationError) -> Response:
    """The answer to a body whose fields are not as documented."""
    return _response(validation_document(error))


def validation_document(error: ValidationError, *, whole: str = "body") -> dict[str, Any]:
    """What is wrong with a body or another `whole`: names its fields, echoes no value."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return _invalid([(one["loc"], one["msg"]) for one in found], whole)


def invalid(found: Sequence[tuple[tuple[int | str, ...], str]]) -> Response:
    """The answer to wrong fields, given as (path, message)."""
    return _response(_invalid(found, "body"))


def from_status(status: int) -> Response:
    """The answer where the web framework itself said no (unknown route, wrong method)."""
    return problem(status, HTTPStatus(status).phrase)


def from_defect(error: Exception) -> Response:
    """The answer to a defect of ours."""
    return _response(defect_document(error))


def defect_document(error: Exception) -> dict[str, Any]:
    """A defect of ours: logged whole, sent without a word of it."""
    log.error("defect", exc_info=error)
    return document(500, "Internal error")


def reason(error: Exception) -> str | None:
    """The label of `keymatch_rejected_total`, None where nothing is counted."""
    return next((name for kind, name in REASONS.items() if isinstance(error, kind)), None)


def _invalid(found: Sequence[tuple[tuple[int | str, ...], str]], whole: str) -> dict[str, Any]:
    """Wrong fields by path and message; a small request gets a small answer."""
    fields = [
        {"field": ".".join(map(str, path))[:SHOWN_CHARACTERS] or whole, "message": message}
        for path, message in found[:SHOWN_FIELDS]
    ]
    return document(422, INVALID, f"{len(found)} field(s) are not as documented", fields=fields)


def _response(found: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(found), found["status"], headers, MEDIA_TYPE)


def _headers(error: KeymatchError) -> dict[str, str] | None:
    if isinstance(error, Overloaded):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, errors.Unauthenticated):
        return {"WWW-Authenticate": 'Bearer realm="keymatch"'}
    return None
