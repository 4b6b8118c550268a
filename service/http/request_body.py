"""Request bodies: the media type of a request, and JSON of bounded size, strictly validated."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from service.core.errors import BodyTooLarge, MalformedRequest, UnsupportedMedia

Model = TypeVar("Model", bound=BaseModel)

JSON = "application/json"
NDJSON = "application/x-ndjson"

_UTF8 = ("utf-8", "utf8")


async def read_json(
    request: Request, model: type[Model], *, limit: int, default: bytes = b""
) -> Model:
    """Read and validate a JSON body of at most `limit` bytes; `default` replaces an empty body.

    Raises `UnsupportedMedia`, `BodyTooLarge`, `MalformedRequest`, or pydantic's
    `ValidationError`. The parser refuses NaN, lone surrogates, invalid UTF-8 and deep nesting.
    """
    content = await _read(request, limit)
    if content or not default:
        media_type(request, JSON)
    return model.model_validate(parse_json(content or default, what="body"))


def parse_json(content: bytes, *, what: str) -> Any:
    """The JSON document in `content`; raises `MalformedRequest`, whose message names `what`."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(
            f"the {what} is not JSON in UTF-8: {error.msg} at byte {error.pos}"
        ) from error


def media_type(request: Request, *accepted: str) -> str:
    """The media type of the body; raises `UnsupportedMedia` unless it is `accepted` and UTF-8."""
    header = request.headers.get("content-type", "")
    if header in accepted:
        return header
    kind, *parameters = (part.strip().lower() for part in header.split(";"))
    charsets = [
        value.strip('" ')
        for name, _, value in (p.partition("=") for p in parameters)
        if name.strip() == "charset"
    ]
    if kind not in accepted or any(charset not in _UTF8 for charset in charsets):
        raise UnsupportedMedia(f"send {' or '.join(accepted)} in UTF-8")
    return kind


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge(f"the body has {declared} bytes; at most {limit} are allowed")
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > limit:
                raise BodyTooLarge(f"the body has more than the {limit} bytes that are allowed")
    except ClientDisconnect as error:  # nobody reads the answer, but the request is not a defect
        raise MalformedRequest("the client left before it had sent its whole body") from error
    return bytes(content)
