"""Error answers to clients: RFC 9457 problem documents."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NotRequired

import orjson
from starlette.responses import Response

from service.core import errors
from service.core.errors import KeymatchError, Overloaded
from service.core.types import TypedDict, doc

if TYPE_CHECKING:  # commands without a server import no metrics
    from service.telemetry import Telemetry

MEDIA_TYPE = "application/problem+json"
INVALID = "Invalid field"
SHOWN_FIELDS = 100  # most invalid fields that one answer lists
SHOWN_CHARACTERS = 200  # most of a field's name, which the client may have chosen

# The first row whose class fits the exception decides. `True`: the exception's message was written
# for clients and is sent; `False`: it may hold paths or internals and goes to the log only.
STATUS_TABLE: tuple[tuple[type[KeymatchError], int, str, bool], ...] = (
    (errors.MalformedHttp, 400, "Malformed HTTP", True),
    (errors.MalformedRequest, 400, "Malformed JSON", True),
    (errors.InvalidToken, 401, "Invalid token", True),
    (errors.Unauthenticated, 401, "API key needed", True),
    (errors.Forbidden, 403, "Scope missing", True),
    (errors.ForeignOrigin, 403, "Foreign origin", True),
    (errors.KeyReused, 409, "Idempotency key reused", True),
    (errors.Busy, 409, "Already going on", True),
    (errors.Cancelled, 409, "Cancelled", True),
    (errors.UnknownLabel, 404, "Unknown label", True),
    (errors.UnknownItem, 404, "Unknown item", True),
    (errors.UnknownRule, 404, "Unknown rule", True),
    (errors.TooSlow, 408, "Request too slow", True),
    (errors.BodyTooLarge, 413, "Body too large", True),
    (errors.UnsupportedCoding, 415, "Unsupported coding", True),
    (errors.UnsupportedMedia, 415, "Unsupported content type", True),
    (errors.UnknownHost, 421, "Unknown host", True),
    (errors.OtherData, 422, "Other data", True),
    (errors.InvalidInput, 422, INVALID, True),
    (errors.TooManyBytes, 429, "Too many bytes held", True),
    (errors.Overloaded, 429, "Too many requests wait", True),
    (errors.HeaderTooLarge, 431, "Header too large", True),
    (errors.ClientLeft, 499, "Client left", True),
    (errors.TooManyConnections, 503, "Too many connections", True),
    (errors.NotReady, 503, "Not ready", True),
    (errors.ShardsUnavailable, 503, "Shards unavailable", True),
    (errors.UnknownBundle, 422, "Bundle missing", True),
    (errors.BundleMissing, 422, "Bundle missing", False),
    (errors.StoreError, 503, "Object store unusable", True),
    (errors.BundleError, 422, "Bundle refused", False),
    (errors.BundlesUnwritable, 503, "The snapshot cannot be written", True),
    (errors.SealError, 503, "The snapshot cannot be written", False),
    (errors.LogError, 503, "The label log cannot be written", False),
    (errors.DeadlineExceeded, 504, "Deadline passed", True),
    (errors.MemoryFull, 507, "Memory full", True),
)
# Values of `reason` in `keymatch_rejected_total`; the first class that fits the exception decides.
REASONS = {
    errors.DelayExceeded: "overloaded",
    errors.TooManyBytes: "held_bytes",
    errors.Overloaded: "queue_full",
    errors.ClientLeft: "disconnected",
    errors.DeadlineExceeded: "deadline",
    errors.NotReady: "not_ready",
    errors.ShardsUnavailable: "shards",
    errors.MemoryFull: "memory_full",
    errors.AnswerTooLarge: "answer_bytes",
    errors.InvalidInput: "invalid",
    errors.TooSlow: "slow",
    errors.TooManyConnections: "connections",
    errors.RequestRefused: "refused",
}

log = logging.getLogger("keymatch")


class FieldProblem(TypedDict):
    """What is wrong with one field."""

    field: Annotated[str, doc("Path of the field, such as `queries.0`; `body`: the whole body.")]
    message: str


class Problem(TypedDict):
    """Why a request was refused or failed (RFC 9457)."""

    type: Annotated[str, doc("urn:keymatch:problem: and the title, in lower case with hyphens.")]
    title: Annotated[str, doc("The kind of problem, in a few words.")]
    status: Annotated[int, doc("The HTTP status, 400 to 507.")]
    detail: Annotated[str, doc("What is wrong with this request, and what to do.")]
    errors: NotRequired[
        Annotated[
            list[FieldProblem],
            doc(f"Invalid fields, at most {SHOWN_FIELDS}; only where one is known."),
        ]
    ]


def problem(
    status: int, title: str, detail: str = "", *, fields: Sequence[FieldProblem] = ()
) -> Problem:
    """Return a problem document; `detail` defaults to the title."""
    document: Problem = {
        "type": f"urn:keymatch:problem:{title.lower().replace(' ', '-')}",
        "title": title,
        "status": status,
        "detail": detail or title,
    }
    if fields:
        document["errors"] = list(fields)
    return document


def problem_response(document: Problem, headers: dict[str, str] | None = None) -> Response:
    """Return an answer with a problem document."""
    return Response(orjson.dumps(document), document["status"], headers, MEDIA_TYPE)


def from_error(error: Exception) -> Response:
    """Return the answer to a request that failed with `error`, which may be a defect."""
    return problem_response(error_document(error), _headers(error))


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an answered error and of its causes.

    A write's error is also its job's result, and the traceback's frames hold the job. This cycle
    keeps a large request until the garbage collector frees many at once, and stops all threads for
    100 ms.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def error_document(error: Exception, *, whole: str = "body") -> Problem:
    """Return the problem for `error`. A message not meant for clients is only logged.

    An error of the whole document, not of a field, names `whole`. A defect is logged with its
    traceback.
    """
    row = next((row for row in STATUS_TABLE if isinstance(error, row[0])), None)
    if row is None:
        log.error("defect", exc_info=error)
        return problem(500, "Internal error")
    _, status, title, for_clients = row
    if not for_clients:
        log.error(title, extra={"cause": str(error)})
        return problem(status, title, error.shown if isinstance(error, errors.BundleError) else "")
    if isinstance(error, errors.InvalidFields):
        return _invalid(error.fields, whole)
    message, field = str(error), getattr(error, "field", "")
    fields: list[FieldProblem] = [{"field": field, "message": message}] if field else []
    return problem(status, title, message, fields=fields)


def reason(error: Exception) -> str | None:
    """Return the `reason` for `keymatch_rejected_total`, or None if `error` is not counted."""
    return next((name for kind, name in REASONS.items() if isinstance(error, kind)), None)


def count(error: Exception, telemetry: Telemetry) -> None:
    """Count a refusal by its reason, if it has one."""
    counted = reason(error)
    if counted:
        telemetry.rejected.labels(counted).inc()


def _invalid(invalid: Sequence[tuple[str, str]], whole: str) -> Problem:
    fields: list[FieldProblem] = [
        {"field": path[:SHOWN_CHARACTERS] or whole, "message": message}
        for path, message in invalid[:SHOWN_FIELDS]
    ]
    # Validation may have stopped early, after one error more than are shown.
    count = len(invalid) if len(invalid) <= SHOWN_FIELDS else f"more than {SHOWN_FIELDS}"
    return problem(422, INVALID, f"{count} field(s) are not as documented", fields=fields)


def _headers(error: Exception) -> dict[str, str] | None:
    if isinstance(error, Overloaded):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, errors.InvalidToken):  # RFC 6750: the client may get a new token
        return {"WWW-Authenticate": 'Bearer realm="keymatch", error="invalid_token"'}
    if isinstance(error, errors.Unauthenticated):
        return {"WWW-Authenticate": 'Bearer realm="keymatch"'}
    if isinstance(error, errors.UnsupportedCoding):
        return {"Accept-Encoding": "gzip"}
    return None
