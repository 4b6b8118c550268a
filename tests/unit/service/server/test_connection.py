"""No bytes that a client sends raise an exception; an ended connection takes no answer."""

import asyncio
import socket
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, cast

import httptools
import pytest
import uvicorn
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from service.engine.reading.task_queue import Arrivals, TaskQueue
from service.http.access import Access, Sites
from service.http.middleware import Refusals
from service.server.connection import ConnectionGuard, LivingTransport, ServiceConnection
from service.settings import EngineSettings, ServerSettings
from service.telemetry import Telemetry

MANY_SECONDS = 10_000.0  # longer than every time limit
TURNS = 30  # of the event loop: enough to answer a received request

LINES = (
    "GET / HTTP/1.1", "GET /health/live HTTP/1.1", "POST /predict HTTP/1.1", "GET * HTTP/1.1",
    "POST /labels HTTP/1.1", "CONNECT a:80 HTTP/1.1", "GET /%ff%00 HTTP/1.0", "GET /ä HTTP/1.1",
    "GET http://a/ HTTP/1.1", "PRI * HTTP/2.0", "Host: a", "Content-Length: 5", "hello",
    "Content-Length: 99999999999999999999", "Content-Length: -1", "Content-Length: x",
    "Transfer-Encoding: chunked", "Transfer-Encoding: identity, chunked", "5", "0", "",
    "ffffffffffffffff", "Expect: 100-continue", "Connection: close", "Connection: upgrade",
    "Upgrade: websocket", "Content-Type: application/x-ndjson", " obs-fold: x", "a: b\r\n" * 300,
)  # fmt: skip
PIECES = st.one_of(
    st.sampled_from(LINES).map(lambda line: line.encode() + b"\r\n"),
    st.binary(max_size=30),
    st.sampled_from([b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"a" * 70_000]),
)


async def aborted_transport() -> asyncio.Transport:
    """The server's transport of a connection that has ended."""
    accepted: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)  # type: ignore[arg-type]

    server = await asyncio.get_running_loop().create_server(Accept, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        transport = await accepted
        transport.abort()
        await asyncio.sleep(0.01)
        server.close()
        return transport


def test_uvloop_raises_where_a_living_transport_takes_nothing() -> None:
    async def write() -> None:
        transport = await aborted_transport()
        with pytest.raises(RuntimeError, match="closed"):
            transport.write(b"late")
        LivingTransport(transport).write(b"late")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write())


class FakeTransport:
    """A transport that records what the server does with it."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = self.paused = False

    def write(self, content: bytes) -> None:
        self.sent += content

    def close(self) -> None:
        self.closed = True

    abort = close

    def write_eof(self) -> None:
        """Do nothing; the server sends nothing more."""

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def app(_scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body until it ends or the client leaves, and answer."""
    message = await receive()
    while message.get("more_body") and message["type"] == "http.request":
        message = await receive()
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def statuses(sent: bytes) -> list[int]:
    """Return the statuses of all answers in `sent`. Raises if they are not valid HTTP answers."""
    found: list[int] = []

    class Seen:
        def on_headers_complete(self) -> None:
            found.append(parser.get_status_code())

    parser = httptools.HttpResponseParser(Seen())
    parser.feed_data(sent)
    return found


@cache
def shared_parts() -> tuple[uvicorn.Config, Telemetry]:
    """Return the parts that are made only once, because that takes longer than a conversation."""
    config = uvicorn.Config(app, http=ServiceConnection, log_config=None, lifespan="off")
    config.load()
    return config, Telemetry()


async def converse(pieces: list[bytes], *, overloaded: bool) -> FakeTransport:
    """Send pieces to a connection, then nothing for longer than any time limit."""
    loop, raised = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda _loop, context: raised.append(context))
    config, telemetry = shared_parts()
    queue = TaskQueue(EngineSettings(threads=1))
    if overloaded:
        queue.lane(1).control.overloaded, queue.lane(1).control.limit = True, 0
    guard = ConnectionGuard(ServerSettings())
    state = {
        "guard": guard,
        "refusals": Refusals(telemetry, Sites(ServerSettings(), Access())),
        "arrivals": Arrivals(queue),
    }
    connection = ServiceConnection(config, ServerState(), state)
    transport = FakeTransport()
    connection.connection_made(cast(asyncio.Transport, transport))
    for piece in pieces:
        if not transport.closed and not transport.paused:
            connection.data_received(piece)
        await turns(lambda: not transport.paused)
    await turns(lambda: False)
    for hours in (1, 2, 3):
        if not transport.closed:
            connection.check(loop.time() + hours * MANY_SECONDS)
            await turns(lambda: False)
    assert not raised
    connection.connection_lost(None)
    await turns(lambda: False)
    for task in connection.tasks:
        task.cancel()
    if guard._timer is not None:
        guard._timer.cancel()
    return transport


async def turns(enough: Callable[[], bool]) -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
        if enough():
            return


@settings(max_examples=400)
@given(pieces=st.lists(PIECES, max_size=12), whole=st.booleans(), overloaded=st.booleans())
def test_any_bytes_are_answered_or_end_the_connection(
    pieces: list[bytes], whole: bool, overloaded: bool
) -> None:
    sent = [b"".join(pieces)] if whole else pieces
    transport = asyncio.run(converse([piece for piece in sent if piece], overloaded=overloaded))
    assert transport.closed, "the client keeps its connection for ever"
    assert all(status in (100, 200, 400, 408, 429, 431) for status in statuses(transport.sent))


@settings(max_examples=100)
@given(cuts=st.lists(st.integers(0, 200), max_size=20).map(sorted), requests=st.integers(1, 3))
def test_however_requests_are_cut_each_has_its_answer(cuts: list[int], requests: int) -> None:
    one = b"POST /labels HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
    content = one * requests
    bounds = [0, *(cut for cut in cuts if cut < len(content)), len(content)]
    pieces = [content[start:end] for start, end in pairwise(bounds) if start < end]
    transport = asyncio.run(converse(pieces, overloaded=False))
    assert statuses(transport.sent) == [200] * requests
