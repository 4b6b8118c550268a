"""Request bodies: the media type of a request, and JSON of bounded size, strictly validated."""

from __future__ import annotations

from typing import TypeVar

import orjson
from pydantic import BaseModel
from starlette.types import Receive, Scope

from service.core.errors import BodyTooLarge, MalformedRequest, UnsupportedMedia
from service.http.bounded_model import BoundedModel
from service.http.large.held_bytes import Hold
from service.http.side_thread import SideThread

Model = TypeVar("Model", bound=BaseModel)

JSON = "application/json"
NDJSON = "application/x-ndjson"

SMALL_BYTES = 16_384  # of JSON, which the event loop parses itself, in a millisecond

_UTF8 = ("utf-8", "utf8")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this name, in lower case; None where the request has none."""
    return next((value for known, value in scope["headers"] if known == name), None)


async def read_json(
    scope: Scope,
    receive: Receive,
    model: BoundedModel[Model],
    *,
    limit: int,
    hold: Hold,
    side_thread: SideThread,
    default: bytes = b"",
) -> Model:
    """Read and validate a JSON body of at most `limit` bytes; `default` replaces an empty body.

    A body of more than `SMALL_BYTES` counts in `hold` until the caller releases it. Raises
    `UnsupportedMedia`, `BodyTooLarge`, `TooManyBytes`, `MalformedRequest` or `InvalidInput`. The
    parser refuses NaN, lone surrogates, invalid UTF-8 and deep nesting.
    """
    content = await _read(scope, receive, limit, hold)
    # Even without content: a page of another site can send an empty body, but not this type.
    media_type(scope, JSON)
    content = content or default
    if len(content) <= SMALL_BYTES:
        return validated(model, content, what="body")
    return await side_thread.run(validated, model, content, what="body")


def validated(model: BoundedModel[Model], content: bytes, *, what: str) -> Model:
    """The document in `content`; raises as `read_json`, with messages that name `what`.

    What has more than `SMALL_BYTES` is for another thread than the event loop's.
    """
    try:
        if len(content) <= SMALL_BYTES:
            return model.validate(orjson.loads(content))
        model.most_values.require(content, what=what)
        return model.validate_json(content)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(
            f"the {what} is not JSON in UTF-8: {error.msg} at byte {error.pos}"
        ) from error


def media_type(scope: Scope, *accepted: str) -> str:
    """The media type of the body; raises `UnsupportedMedia` unless it is `accepted` and UTF-8."""
    given = (header(scope, b"content-type") or b"").decode("latin-1")
    if given in accepted:
        return given
    kind, *parameters = (part.strip().lower() for part in given.split(";"))
    charsets = [
        value.strip('" ')
        for name, _, value in (p.partition("=") for p in parameters)
        if name.strip() == "charset"
    ]
    if kind not in accepted or any(charset not in _UTF8 for charset in charsets):
        raise UnsupportedMedia(f"send {' or '.join(accepted)} in UTF-8")
    return kind


async def _read(scope: Scope, receive: Receive, limit: int, hold: Hold) -> bytes:
    declared = header(scope, b"content-length") or b""
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(f"the body has {int(declared)} bytes; at most {limit} are allowed")
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":  # nobody reads the answer; it is no defect
            raise MalformedRequest("the client left before it had sent its whole body")
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(f"the body has more than the {limit} bytes that are allowed")
        if size > SMALL_BYTES:
            hold.add(size - hold.size)
        if not message.get("more_body", False):
            return b"".join(pieces)
