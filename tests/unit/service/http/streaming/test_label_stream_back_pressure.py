"""A stream of labels holds little in memory, however slowly the writer or the client is."""

import asyncio
from typing import Any

import pytest

from tests.support.http.label_stream import (
    FakeClient,
    FakeWriter,
    many,
    stream,
)


def test_a_client_may_send_everything_before_it_reads() -> None:
    async def run() -> None:
        writer, client = FakeWriter(), FakeClient([many(1000)] * 5)
        client.reading.clear()
        ending = asyncio.ensure_future(stream(writer, client))
        while client.received < 6:
            await asyncio.sleep(0.001)
        assert client.messages == []
        client.reading.set()
        await ending
        assert len(client.answers) == 5000

    asyncio.run(run())


def test_a_full_buffer_stops_reading_from_the_client() -> None:
    async def run() -> None:
        writer, client = FakeWriter(), FakeClient([many(256)] * 50)
        client.reading.clear()
        ending = asyncio.ensure_future(stream(writer, client, stream_answer_bytes=50_000))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert 2 <= client.received < 20
        client.reading.set()
        await ending
        assert len(client.answers) == len(writer.applied) == 50 * 256

    asyncio.run(run())


def test_reading_waits_for_the_writer() -> None:
    async def run() -> None:
        writer, client = FakeWriter(), FakeClient([many(256)] * 50)
        writer.unblocked.clear()
        ending = asyncio.ensure_future(stream(writer, client))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert client.received <= 3  # a batch with the writer, one that waits, one cut up
        writer.unblocked.set()
        await ending
        assert len(writer.applied) == 50 * 256

    asyncio.run(run())


@pytest.mark.parametrize("limit", [1000, 10_000_000])
def test_a_client_that_never_reads_is_given_up(limit: int) -> None:
    async def run() -> None:
        writer, client = FakeWriter(), FakeClient([many(256)] * 5)
        client.reading.clear()
        await stream(writer, client, stream_answer_bytes=limit, patience=0.05)
        assert client.messages == []
        assert len(writer.applied) == (256 if limit == 1000 else 5 * 256)

    asyncio.run(run())


def test_a_client_that_reads_slowly_is_not() -> None:
    async def run() -> None:
        client = FakeClient([many(256)] * 20)
        send = client.send

        async def send_slowly(message: dict[str, Any]) -> None:
            await asyncio.sleep(0.05)
            await send(message)

        client.send = send_slowly  # type: ignore[method-assign]
        await stream(FakeWriter(), client, stream_answer_bytes=1000, patience=0.5)
        assert len(client.answers) == 20 * 256

    asyncio.run(run())
