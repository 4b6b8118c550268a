"""Check the answer to a stream of labels: valid lines, in order, one per line of the request."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from jsonschema import Draft202012Validator

NDJSON = "application/x-ndjson"
Lines = Sequence[Mapping[str, Any]]


def assert_stream_answer(
    content: bytes, openapi: Mapping[str, Any], *, method: str = "post"
) -> Lines:
    """Assert that all lines fit the schema of the answer in `openapi` and are in order.

    They answer a stream to /labels with this method.

    Line numbers ascend, and only the last line may say where the stream stopped.
    """
    lines = [orjson.loads(line) for line in content.splitlines()]
    validator = _validator(orjson.dumps(openapi), method)
    for place, line in enumerate(lines, 1):
        faults = [error.message for error in validator.iter_errors(line)]
        assert not faults, f"line {place} of the answer is not as documented: {faults}: {line}"
    assert lines, "a stream was answered without a line"
    numbers = [line["line"] for line in lines if "stopped_after" not in line]
    assert all("stopped_after" not in line for line in lines[:-1]), "lines after the stream's end"
    assert numbers == sorted(set(numbers)), f"lines are answered twice or out of order: {numbers}"
    stopped = lines[-1].get("stopped_after")
    assert stopped is None or stopped >= max(numbers, default=0), f"{lines[-1]} after {numbers}"
    return lines


@lru_cache(maxsize=2)
def _validator(document: bytes, method: str) -> Draft202012Validator:
    """Make the validator of a line of the answer, once per document and method."""
    openapi = orjson.loads(document)
    answer = openapi["paths"]["/labels"][method]["responses"]["200"]["content"][NDJSON]["schema"]
    return Draft202012Validator({**answer, "components": openapi["components"]})
