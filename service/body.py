"""Request bodies: bounded, JSON only, validated strictly."""

from __future__ import annotations

from typing import TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from service.core.errors import BodyTooLarge, MalformedRequest, UnsupportedMedia

Model = TypeVar("Model", bound=BaseModel)

_UTF8 = ("utf-8", "utf8")


async def read_json(request: Request, model: type[Model], *, limit: int) -> Model:
    """Read and validate a JSON body of at most `limit` bytes.

    Raises `UnsupportedMedia`, `BodyTooLarge`, `MalformedRequest`, or pydantic's
    `ValidationError`. The parser refuses NaN, lone surrogates, invalid UTF-8 and deep nesting.
    """
    _require_json(request.headers.get("content-type", ""))
    content = await _read(request, limit)
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(
            f"the body is not JSON in UTF-8: {error.msg} at byte {error.pos}"
        ) from error
    return model.model_validate(document)


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge(f"the body has {declared} bytes; at most {limit} are read")
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > limit:
                raise BodyTooLarge(f"the body has more than {limit} bytes")
    except ClientDisconnect as error:  # nobody reads the answer, but it is no defect of ours
        raise MalformedRequest("the client left before its body was whole") from error
    return bytes(content)


def _require_json(content_type: str) -> None:
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [
        value.strip('" ')
        for name, _, value in (p.partition("=") for p in parameters)
        if name.strip() == "charset"
    ]
    if kind != "application/json" or any(charset not in _UTF8 for charset in charsets):
        raise UnsupportedMedia("send application/json in UTF-8")
