"""Idempotency keys: a repeated request gets the answer of the first one and changes nothing."""

from __future__ import annotations

import hashlib
import re

import orjson
from pydantic import BaseModel
from starlette.requests import Request

from service.core.errors import InvalidInput
from service.engine.writing.write_queue import RequestKey

HEADER = "Idempotency-Key"
# The header in the OpenAPI document.
HEADER_PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": (
        "Makes a write safe to repeat: a request with the same key and the same content gets the"
        " answer of the first one and changes nothing; with other content it is a 409. 1 to 255"
        " visible ASCII characters; a key is remembered for a day."
    ),
}
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def request_key(request: Request, body: BaseModel | None, *, key_name: str) -> RequestKey | None:
    """The idempotency key of a request, None where it has none.

    Two clients may use the same key: it is stored together with `key_name`, the name of the API key
    that sent it. Two requests are the same if they go to the same path and their validated body is
    the same; white space and the order of fields make no difference. Raises `InvalidInput` for a
    key that is too long or not visible ASCII.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidInput("must be 1 to 255 visible ASCII characters", field=HEADER)
    content = b"{}" if body is None else _content(body)
    # The path as it is routed: that of `request.url` lacks tabs, line breaks, and all after a "?".
    path: str = request.scope["path"]
    digest = hashlib.sha256(path.encode() + b"\0" + content).hexdigest()
    return RequestKey(key=f"{key_name}:{key}", digest=digest)


def _content(body: BaseModel) -> bytes:
    """The fields of a body as JSON; a list entry by entry, since one call would keep the lock."""
    document = {
        name: [orjson.Fragment(_content(entry)) for entry in value]
        if isinstance(value, list) and value and isinstance(value[0], BaseModel)
        else value
        for name, value in body
    }
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def refuse_idempotency_key(request: Request) -> None:
    """Raise `InvalidInput` if a stream of labels has an idempotency key."""
    if HEADER in request.headers:
        raise InvalidInput(
            "a stream takes no idempotency key and needs none: each line creates or replaces the"
            " label of its id, so the same stream can be sent again",
            field=HEADER,
        )
