"""Hooks that let schemathesis test streams of JSON lines; loaded by SCHEMATHESIS_HOOKS.

The OpenAPI document has the schemas of one line sent and one received. Lines are sent twice.
"""

import json
from typing import Any

import orjson
import schemathesis
from schemathesis import Case, CheckContext, DeserializationContext, Response, SerializationContext
from schemathesis.specs.openapi.checks import negative_data_rejection

from tests.support.http.stream_lines import NDJSON, assert_stream_answer


@schemathesis.serializer(NDJSON)
def two_lines(_context: SerializationContext, value: Any) -> bytes:
    """Serialize a stream of two equal lines; a line broken on purpose may be no JSON."""
    try:
        line = value if isinstance(value, bytes) else orjson.dumps(value, default=str)
    except TypeError:  # a number of more than 64 bits
        line = json.dumps(value, default=str).encode()
    return (line + b"\n") * 2


@schemathesis.deserializer(NDJSON)
def last_line(_context: DeserializationContext, response: Response) -> Any:
    """Return the line that schemathesis validates; `every_line_is_answered` validates all."""
    return orjson.loads(response.content.splitlines()[-1]) if response.content else None


@schemathesis.check
def wrong_data_is_refused(context: CheckContext, response: Response, case: Case) -> None:
    """Apply `negative_data_rejection`, except to streams, which only refuse the wrong line."""
    if case.media_type != NDJSON:
        negative_data_rejection(context, response, case)


@schemathesis.check
def every_line_is_answered(_context: CheckContext, response: Response, case: Case) -> None:
    """Each line of the answer matches the document and belongs to a line of the request."""
    if response.headers.get("content-type", [""])[0].startswith(NDJSON):
        assert_stream_answer(response.content, case.operation.schema.raw_schema)
