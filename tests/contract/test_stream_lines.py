"""`assert_stream_answer`, which checks answers to streams, finds each kind of wrong line."""

from typing import Any

import orjson
import pytest

from tests.support.http.stream_lines import assert_stream_answer
from tests.support.serving import LocalService

WRITTEN = {"line": 1, "id": "a", "status": "created", "neighbours": [], "version": 1}
PROBLEM = {"type": "urn:keymatch:problem:x", "title": "X", "status": 422, "detail": "x"}
REFUSED = {"line": 2, "error": PROBLEM}
STOPPED = {"stopped_after": 2, "error": PROBLEM}


@pytest.fixture(scope="module")
def openapi(service: LocalService) -> dict[str, Any]:
    return service.get("/openapi.json").json()


def content(*lines: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


@pytest.mark.parametrize(
    "lines", [[WRITTEN], [WRITTEN, REFUSED], [WRITTEN, REFUSED, STOPPED], [STOPPED]]
)
def test_answers_as_documented_are_accepted(
    openapi: dict[str, Any], lines: list[dict[str, Any]]
) -> None:
    assert assert_stream_answer(content(*lines), openapi) == lines


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "without a line"),
        ([{**WRITTEN, "status": 3}, REFUSED], "line 1 of the answer is not as documented"),
        ([{"line": 1}, REFUSED], "line 1 of the answer"),
        ([WRITTEN, {"line": 2, "error": {"title": "X"}}, STOPPED], "line 2 of the answer"),
        ([WRITTEN, {"stopped_after": "2", "error": PROBLEM}], "line 2 of the answer"),
        ([REFUSED, WRITTEN], "twice or out of order"),
        ([WRITTEN, WRITTEN], "twice or out of order"),
        ([STOPPED, {**WRITTEN, "line": 3}], "lines after the stream's end"),
        ([WRITTEN, {**REFUSED, "line": 3}, STOPPED], "stopped_after"),
    ],
)
def test_any_wrong_line_is_objected_to(
    openapi: dict[str, Any], lines: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_stream_answer(content(*lines), openapi)


def test_the_service_answers_so(service: LocalService, openapi: dict[str, Any]) -> None:
    sent = b'{"text": "ice axe"}\n\n{"txt": "?"}\nno JSON\n'
    answer = service.post("/labels", content=sent, headers={"content-type": "application/x-ndjson"})
    numbers = [line["line"] for line in assert_stream_answer(answer.content, openapi)]
    assert numbers == [1, 3, 4]
