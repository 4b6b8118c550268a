"""Idempotency keys: a repeated request gets the first one's answer and changes nothing."""

from __future__ import annotations

import hashlib
import re

import orjson
from pydantic import BaseModel
from starlette.requests import Request

from service.core.errors import InvalidInput
from service.engine.write_queue import RequestKey

HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def request_key(request: Request, body: BaseModel) -> RequestKey | None:
    """The key that a request came with, None without one; raises `InvalidInput` for a bad key.

    Keys belong to the API key that sends them: two clients may use the same. What makes requests
    the same is route and content, not the bytes that it was written in.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidInput("must be 1 to 255 visible ASCII characters", field="Idempotency-Key")
    content = orjson.dumps(body.model_dump(), option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(request.url.path.encode() + b"\0" + content).hexdigest()
    holder = getattr(request.state, "key_name", "")
    return RequestKey(key=f"{holder}:{key}", digest=digest)
