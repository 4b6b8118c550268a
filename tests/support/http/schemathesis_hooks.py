"""What schemathesis must be told of streams of JSON lines; loaded by SCHEMATHESIS_HOOKS.

The document gives the schema of one line, of request and answer. A generated line is sent twice.
"""

from typing import Any

import orjson
import schemathesis
from schemathesis import Case, CheckContext, DeserializationContext, Response, SerializationContext
from schemathesis.specs.openapi.checks import negative_data_rejection

from tests.support.http.stream_lines import NDJSON, assert_stream_answer


@schemathesis.serializer(NDJSON)
def two_lines(_context: SerializationContext, value: Any) -> bytes:
    """The body of a stream; what schemathesis has broken on purpose may be no JSON."""
    line = value if isinstance(value, bytes) else orjson.dumps(value, default=str)
    return (line + b"\n") * 2


@schemathesis.deserializer(NDJSON)
def last_line(_context: DeserializationContext, response: Response) -> Any:
    """The line that schemathesis holds against the schema; `every_line_is_answered` does all."""
    return orjson.loads(response.content.splitlines()[-1]) if response.content else None


@schemathesis.check
def wrong_data_is_refused(context: CheckContext, response: Response, case: Case) -> None:
    """As `negative_data_rejection`; but of a stream, only the wrong line is refused."""
    if case.media_type != NDJSON:
        negative_data_rejection(context, response, case)


@schemathesis.check
def every_line_is_answered(_context: CheckContext, response: Response, case: Case) -> None:
    """Each line of the answer is as the document says, and answers a line of the request."""
    if response.headers.get("content-type", [""])[0].startswith(NDJSON):
        assert_stream_answer(response.content, case.operation.schema.raw_schema)
