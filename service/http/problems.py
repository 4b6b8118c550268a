"""What a client is told about a refused or failed request: RFC 9457 problem documents."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, NotRequired

import orjson
from pydantic import Field
from starlette.responses import Response

# Before Python 3.12 pydantic takes no TypedDict of `typing`.
from typing_extensions import TypedDict

from service.core import errors
from service.core.errors import KeymatchError, Overloaded

MEDIA_TYPE = "application/problem+json"
INVALID = "Invalid field"
SHOWN_FIELDS = 100  # invalid fields that one answer lists
SHOWN_CHARACTERS = 200  # of a field's name, which the client may have chosen

# The first row whose class fits the exception decides. `True`: the exception's message was written
# for clients and is sent; `False`: it may hold paths or internals and goes to the log only.
STATUS_TABLE: tuple[tuple[type[KeymatchError], int, str, bool], ...] = (
    (errors.MalformedHttp, 400, "Malformed HTTP", True),
    (errors.MalformedRequest, 400, "Malformed JSON", True),
    (errors.Unauthenticated, 401, "API key needed", True),
    (errors.Forbidden, 403, "Scope missing", True),
    (errors.ForeignOrigin, 403, "Foreign origin", True),
    (errors.KeyReused, 409, "Idempotency key reused", True),
    (errors.Busy, 409, "Already going on", True),
    (errors.Cancelled, 409, "Cancelled", True),
    (errors.UnknownLabel, 404, "Unknown label", True),
    (errors.UnknownItem, 404, "Unknown item", True),
    (errors.TooSlow, 408, "Request too slow", True),
    (errors.BodyTooLarge, 413, "Body too large", True),
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
    (errors.UnknownBundle, 422, "Bundle missing", True),
    (errors.BundleMissing, 422, "Bundle missing", False),
    (errors.BundleError, 422, "Bundle refused", False),
    (errors.SealError, 503, "The snapshot cannot be written", False),
    (errors.LogError, 503, "The label log cannot be written", False),
    (errors.DeadlineExceeded, 504, "Deadline passed", True),
    (errors.MemoryFull, 507, "Memory full", True),
)
# Label values of `keymatch_rejected_total`; the first class that fits the exception decides.
REASONS = {
    errors.DelayExceeded: "overloaded",
    errors.TooManyBytes: "held_bytes",
    errors.Overloaded: "queue_full",
    errors.ClientLeft: "disconnected",
    errors.DeadlineExceeded: "deadline",
    errors.NotReady: "not_ready",
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

    field: Annotated[
        str, Field(description="Path of the field, such as `queries.0`; `body`: the whole body.")
    ]
    message: str


class Problem(TypedDict):
    """Why a request was refused or failed (RFC 9457)."""

    type: Annotated[
        str, Field(description="urn:keymatch:problem: and the title, in lower case with hyphens.")
    ]
    title: Annotated[str, Field(description="The kind of problem, in a few words.")]
    status: Annotated[int, Field(description="The HTTP status, 400 to 507.")]
    detail: Annotated[str, Field(description="What is wrong with this request, and what to do.")]
    errors: NotRequired[
        Annotated[
            list[FieldProblem],
            Field(description=f"Invalid fields, at most {SHOWN_FIELDS}; only where one is known."),
        ]
    ]


def problem(
    status: int, title: str, detail: str = "", *, fields: Sequence[FieldProblem] = ()
) -> Problem:
    """A problem document; without `detail`, the title stands for it."""
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
    """The answer with a problem document."""
    return Response(orjson.dumps(document), document["status"], headers, MEDIA_TYPE)


def from_error(error: KeymatchError) -> Response:
    """The answer to a request that failed with `error`."""
    return problem_response(error_document(error), _headers(error))


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that was answered, and of those that led to it.

    A write's error is also the result of its job, which frames of the traceback hold. Such a cycle
    keeps a large request until the garbage collector frees many of them at once, and stops all
    threads for 100 ms to do so.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def error_document(error: Exception, *, whole: str = "body") -> Problem:
    """What a client is told about `error`; a message that must not be sent is logged instead.

    An error above all fields names `whole`.
    """
    row = next((row for row in STATUS_TABLE if isinstance(error, row[0])), None)
    if row is None:
        return defect_document(error)
    _, status, title, for_clients = row
    if not for_clients:
        log.error(title, extra={"cause": str(error)})
        return problem(status, title)
    if isinstance(error, errors.InvalidFields):
        return _invalid(error.fields, whole)
    message, field = str(error), getattr(error, "field", "")
    fields: list[FieldProblem] = [{"field": field, "message": message}] if field else []
    return problem(status, title, message, fields=fields)


def from_status(status: int, headers: dict[str, str] | None = None) -> Response:
    """The answer where the web framework refused a request (unknown route, wrong method)."""
    return problem_response(problem(status, HTTPStatus(status).phrase), headers)


def from_defect(error: Exception) -> Response:
    """The answer after an error that nothing in the service expects."""
    return problem_response(defect_document(error))


def defect_document(error: Exception) -> Problem:
    """Log an unexpected error with its trace; the client is told nothing of it."""
    log.error("defect", exc_info=error)
    return problem(500, "Internal error")


def reason(error: Exception) -> str | None:
    """The label value of `keymatch_rejected_total` for `error`, None if it is not counted."""
    return next((name for kind, name in REASONS.items() if isinstance(error, kind)), None)


def _invalid(invalid: Sequence[tuple[str, str]], whole: str) -> Problem:
    """A problem of invalid fields, given by path and message; bounded, however many they are."""
    fields: list[FieldProblem] = [
        {"field": path[:SHOWN_CHARACTERS] or whole, "message": message}
        for path, message in invalid[:SHOWN_FIELDS]
    ]
    # Validation may have stopped after one more than are shown.
    count = len(invalid) if len(invalid) <= SHOWN_FIELDS else f"more than {SHOWN_FIELDS}"
    return problem(422, INVALID, f"{count} field(s) are not as documented", fields=fields)


def _headers(error: KeymatchError) -> dict[str, str] | None:
    if isinstance(error, Overloaded):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, errors.Unauthenticated):
        return {"WWW-Authenticate": 'Bearer realm="keymatch"'}
    return None
