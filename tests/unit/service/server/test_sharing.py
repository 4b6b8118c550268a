"""Loops that accept from one socket share a burst of connections evenly."""

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from service.server import sharing
from service.server.sharing import SharingLoop, SharingServer
from tests.support.waiting import wait_for


class Worker:
    """A loop in a thread of its own, which holds the connections that it accepts."""

    def __init__(self, listening: socket.socket) -> None:
        self.accepted: list[asyncio.BaseTransport] = []
        self.loop, self.server = SharingLoop(), None
        self._thread = threading.Thread(target=self._serve, args=(listening.dup(),))
        self._thread.start()
        wait_for(lambda: self.server is not None)

    def _serve(self, listening: socket.socket) -> None:
        worker = self

        class Held(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                worker.accepted.append(transport)

        async def serve() -> None:
            self.server: SharingServer = await self.loop.create_server(Held, sock=listening)
            await self.server.wait_closed()
            assert not self.server.is_serving()
            for transport in self.accepted:
                transport.close()

        self.loop.run_until_complete(serve())
        self.loop.close()
        listening.close()

    def end(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.server.close)
        self._thread.join()


@contextmanager
def workers(count: int) -> Iterator[tuple[socket.socket, list[Worker]]]:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        started = [Worker(listening) for _ in range(count)]
        for worker in started:
            stack.callback(worker.end)
        yield listening, started


def connect(stack: ExitStack, listening: socket.socket, count: int) -> None:
    for _ in range(count):
        stack.enter_context(socket.create_connection(listening.getsockname()))


def test_a_burst_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", 0.02)  # for a busy machine
    with workers(2) as (listening, (one, other)), ExitStack() as stack:
        connect(stack, listening, 16)
        wait_for(lambda: len(one.accepted) + len(other.accepted) == 16)
        assert abs(len(one.accepted) - len(other.accepted)) <= 4


def test_a_closed_server_accepts_nothing() -> None:
    with workers(2) as (listening, (one, other)), ExitStack() as stack:
        assert one.server.is_serving()
        one.end()
        connect(stack, listening, 5)
        wait_for(lambda: len(other.accepted) == 5)
        assert not one.accepted


def test_an_error_is_logged_and_does_not_end_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, errors = SharingLoop.sock_accept, [OSError(errno.EMFILE, "Too many open files")]

    async def failing_once(loop: SharingLoop, sock: socket.socket) -> object:
        if errors:
            raise errors.pop()
        return await accept(loop, sock)

    monkeypatch.setattr(SharingLoop, "sock_accept", failing_once)
    with caplog.at_level(logging.WARNING), workers(1) as (listening, [worker]), ExitStack() as on:
        connect(on, listening, 1)
        wait_for(lambda: len(worker.accepted) == 1)
    assert "Too many open files" in caplog.records[0].cause
