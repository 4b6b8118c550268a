"""A stream of labels that ends early: the writer fails, the client leaves, the service stops."""

import asyncio

import pytest

from service.core.errors import LogError, MemoryFull, NotReady, Overloaded
from service.http.answers import StreamEnd
from service.http.streaming import batch_queue, label_stream
from service.telemetry import Telemetry
from tests.support.http.answers import assert_answer
from tests.support.http.label_stream import (
    HANGS,
    LEAVES,
    FakeClient,
    FakeWriter,
    good,
    many,
    put,
    stream,
)


def test_a_full_queue_means_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stream, "RETRY_SECONDS", 0)
    full = Overloaded("full", retry_after=1)
    telemetry = Telemetry()
    writer, client = put([many(600)], {1: full, 2: full, 4: full}, telemetry=telemetry)
    assert [len(call) for call in writer.calls] == [256, 256, 256, 256, 256, 88]
    assert [label.text for label in writer.applied] == [f"label {n}" for n in range(1, 601)]
    assert all(answer["status"] == "created" for answer in client.answers)
    assert b'rejected_total{reason="queue_full"} 0.0' in telemetry.render()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryFull("full"), 507),
        (LogError("/disk"), 503),
        (NotReady("the writer has stopped"), 503),
        (RuntimeError("a defect"), 500),
    ],
)
def test_nothing_behind_a_failed_batch_is_applied(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    monkeypatch.setattr(batch_queue, "BATCH_SECONDS", 60)  # full batches, also on a busy machine
    content = many(300) + b"{\n" + many(600)
    writer, client = put([content[:9000], content[9000:]], {2: error})
    assert [len(call) for call in writer.calls] == [256, 255]
    *lines, end = client.answers
    assert [answer["line"] for answer in lines] == list(range(1, 513))
    refused = {answer["line"]: answer["error"]["status"] for answer in lines if "error" in answer}
    assert refused == dict.fromkeys(range(257, 513), status) | {301: 400}
    assert_answer(end, StreamEnd)
    assert (end["stopped_after"], end["error"]["status"]) == (512, status)
    assert "/disk" not in str(end)
    assert client.ended


def test_a_stream_that_ends_for_want_of_room_is_counted_once() -> None:
    telemetry = Telemetry()
    put([many(600)], {1: MemoryFull("full")}, telemetry=telemetry)
    assert b'rejected_total{reason="memory_full"} 1.0' in telemetry.render()


def test_the_batch_that_was_handed_over_outlives_its_client() -> None:
    async def run() -> None:
        writer, client = FakeWriter(), FakeClient([many(256), many(50), LEAVES])
        writer.unblocked.clear()
        ending = asyncio.ensure_future(stream(writer, client))
        while client.received < 3 or not writer.calls:
            await asyncio.sleep(0.001)
        writer.unblocked.set()
        await ending
        assert [label.text for label in writer.applied] == [f"label {n}" for n in range(1, 257)]
        assert len(writer.calls) == 1

    asyncio.run(run())


def test_a_client_that_leaves_at_once_is_not_answered() -> None:
    writer, client = put([b'{"text": "cut', LEAVES])
    assert (writer.calls, client.messages) == ([], [])


def test_a_client_that_leaves_while_the_queue_is_full_is_forgotten() -> None:
    full = dict.fromkeys(range(1, 100), Overloaded("full", retry_after=1))
    writer, _ = put([good("a"), *[b"\n"] * 100, LEAVES], full)
    assert writer.applied == []
    assert len(writer.calls) < 100


@pytest.mark.parametrize("last", [HANGS, b""])
def test_a_service_that_drains_ends_the_stream_between_batches(last: bytes) -> None:
    async def run() -> None:
        writer, client = FakeWriter(), FakeClient([many(300), last])
        await stream(writer, client, draining=lambda: len(writer.calls) > 0)
        *lines, end = client.answers
        assert [answer["line"] for answer in lines] == list(range(1, 257))
        assert (end["stopped_after"], end["error"]["status"]) == (256, 503)
        assert client.ended

    asyncio.run(run())


def test_an_idle_stream_ends_when_the_service_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stream, "LOOK_SECONDS", 0.001)
    looks = iter([False] * 5)
    writer, client = put([HANGS], draining=lambda: next(looks, True))
    assert [answer["stopped_after"] for answer in client.answers] == [0]
    assert (writer.calls, client.ended) == ([], True)


def test_a_service_that_drains_does_not_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stream, "RETRY_SECONDS", 0)

    async def run() -> None:
        writer = FakeWriter(dict.fromkeys(range(1, 100), Overloaded("full", retry_after=1)))
        client = FakeClient([good("a")])
        await stream(writer, client, draining=lambda: len(writer.calls) > 5)
        line, end = client.answers
        assert (line["error"]["status"], end["stopped_after"]) == (503, 1)

    asyncio.run(run())
