"""Every line of a stream of labels is answered once, in order, and soon."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.types import NewLabel
from service.http.answers import LineAnswer, LineRefusal
from service.http.streaming.label_stream import BATCH_LINES
from tests.support.http.answers import assert_answer
from tests.support.http.label_stream import (
    FakeClient,
    FakeWriter,
    good,
    many,
    put,
    stream,
)


def test_each_line_is_answered() -> None:
    writer, client = put([b'{"id": "pm-1", "text": "password manager", "queries": ["bitwarden"]}'])
    assert writer.applied == [NewLabel(id="pm-1", text="password manager", queries=("bitwarden",))]
    [answer] = client.answers
    assert answer == {
        "line": 1, "id": "pm-1", "status": "created", "version": 1, "neighbours": []
    }  # fmt: skip
    assert_answer(answer, LineAnswer)
    start = client.messages[0]
    assert start["status"] == 200
    assert dict(start["headers"]) == {
        b"content-type": b"application/x-ndjson",
        b"connection": b"close",
    }
    assert client.ended


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_stream_has_an_empty_answer(content: bytes) -> None:
    writer, client = put([content])
    assert (writer.calls, client.answers, client.ended) == ([], [], True)


@pytest.mark.parametrize(
    ("line", "status", "field"),
    [
        (b"{", 400, None),
        (b'{"text": "\xff"}', 400, None),
        (b"[" * 5000, 400, None),
        (b'{"text": NaN}', 400, None),
        (b'{"text": "a"} {"text": "b"}', 400, None),
        (b'"text"', 422, "line"),
        (b"{}", 422, "text"),
        (b'{"text": " "}', 422, "text"),
        (b'{"text": 3}', 422, "text"),
        (b'{"labels": []}', 422, "labels"),
        (b'{"text": "a", "queries": ["b", ""]}', 422, "queries.1"),
        (b'{"text": "' + b"x" * 10_000 + b'"}', 413, None),
    ],
)
def test_a_bad_line_is_answered_by_its_own_problem(
    line: bytes, status: int, field: str | None
) -> None:
    writer, client = put([good("a") + line + b"\r\n" + good("b")], body_bytes=10_000)
    assert [label.id for label in writer.applied] == ["a", "b"]
    first, refusal, last = client.answers
    assert (first["id"], last["id"], last["line"]) == ("a", "b", 3)
    assert_answer(refusal, LineRefusal)
    assert (refusal["line"], refusal["error"]["status"]) == (2, status)
    fields = [one["field"] for one in refusal["error"].get("errors", [])]
    assert field in fields if field else not fields


@given(data=st.data(), kinds=st.lists(st.sampled_from(["good", "bad", "blank"]), max_size=700))
def test_any_mix_of_lines_is_answered_in_order(data: st.DataObject, kinds: list[str]) -> None:
    shown = {"bad": b"{", "blank": b" "}
    content = b"\n".join(shown.get(kind, good(f"{n}").rstrip()) for n, kind in enumerate(kinds, 1))
    size = data.draw(st.integers(1, len(content) + 1))
    writer, client = put(content[start : start + size] for start in range(0, len(content), size))
    numbered = list(enumerate(kinds, 1))
    assert [label.text for label in writer.applied] == [
        str(number) for number, kind in numbered if kind == "good"
    ]
    assert [(answer["line"], "error" in answer) for answer in client.answers] == [
        (number, kind == "bad") for number, kind in numbered if kind != "blank"
    ]


def test_an_id_may_come_again_in_one_batch() -> None:
    writer, client = put([b'{"id": "a", "text": "b"}\n{"id": "a", "text": "c"}\n'])
    assert [[label.text for label in call] for call in writer.calls] == [["b", "c"]]
    assert [answer["id"] for answer in client.answers] == ["a", "a"]


def test_batches_are_full_while_lines_come_fast() -> None:
    writer, client = put([many(1000)])
    assert [len(call) for call in writer.calls] == [256, 256, 256, 232]
    assert [answer["line"] for answer in client.answers] == list(range(1, 1001))
    assert [answer["version"] for answer in client.answers[255:257]] == [256, 512]


def test_a_batch_is_full_once_it_has_the_bytes_of_a_body() -> None:
    writer, _ = put([good(*"abcdef")], body_bytes=2 * len(good("a").rstrip()))
    assert [len(call) for call in writer.calls] == [2, 2, 2]


def test_the_answer_to_a_line_comes_before_the_next_line() -> None:
    async def run() -> None:
        client = FakeClient([])

        async def receive() -> dict[str, Any]:
            sent = client.received
            while len(client.answers) < sent:
                await asyncio.sleep(0.001)
            client.received += 1
            more = client.received <= 5
            return {"type": "http.request", "body": good("a") * more, "more_body": more}

        client.receive = receive  # type: ignore[method-assign]
        writer = FakeWriter()
        await stream(writer, client)
        assert [len(call) for call in writer.calls] == [1] * 5

    asyncio.run(run())


def test_lines_that_trickle_in_do_not_keep_the_first_one_waiting() -> None:
    async def run() -> None:
        client = FakeClient([])

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.005)
            client.received += 1
            more = not client.answers
            assert client.received < BATCH_LINES
            return {"type": "http.request", "body": good("a") * more, "more_body": more}

        client.receive = receive  # type: ignore[method-assign]
        await stream(FakeWriter(), client)

    asyncio.run(run())


def test_bad_lines_alone_are_not_applied() -> None:
    writer, client = put([b"{\n" * 600])
    assert writer.calls == []
    assert [answer["line"] for answer in client.answers] == list(range(1, 601))
