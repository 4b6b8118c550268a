"""An HTTP connection that ends when its client sends too much of a header, or too slowly.

What a client can make the service hold, and for how long:

| phase  | bytes                                          | until                                  |
|--------|------------------------------------------------|----------------------------------------|
| IDLE   | none                                           | `idle_seconds`; new: `header_seconds`  |
| HEADER | `header_bytes` and one read                    | `header_seconds` from its first byte   |
| BODY   | as the application reads; beside it as HEADER  | `body_seconds`; a stream of labels: as |
|        |                                                | long as a piece comes in `idle_seconds`|
| ANSWER | `MOST_PIPELINED` requests and one read         | for ever: the service is at work       |

Beside all phases, an answer of which the client reads nothing for `idle_seconds` ends the
connection. uvicorn itself ends none but quiet idle ones, and holds a header of any length.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

from httptools import HttpParserError, HttpParserUpgrade
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.core.errors import (
    HeaderTooLarge,
    KeymatchError,
    MalformedHttp,
    TooManyConnections,
    TooSlow,
)
from service.http.refusals import Refusals
from service.http.request_body import NDJSON, header
from service.server.connection_guard import ConnectionGuard
from service.server.living_transport import LivingTransport

READ_BYTES = 262_144  # that the event loop reads from a socket at once
MOST_PIPELINED = 64  # requests that wait behind the one in progress
# Of a header or its trailers. A field of four bytes takes a hundred and more as Python's objects.
MOST_FIELDS = 256
PROBES = (b"/health/", b"/metrics")  # paths that are answered when connections are scarce


# What a connection waits for; plain numbers, since each request compares several.
IDLE, HEADER, BODY, ANSWER = range(4)


class _Stopped(Exception):
    """Stops the parser inside a callback; the connection knows why."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection within the bounds of `ServerSettings`."""

    phase = IDLE
    deadline = math.inf  # by the loop's clock; infinite while the next step is the service's
    _for_probes = False
    _read = 0  # bytes of the read that is being parsed
    _bytes = 0  # read for a header, or since the last piece of a body
    _heard = False  # whether a piece of the body has come since the deadline was set
    _unsent, _unsent_since = 0, 0.0  # bytes of answers not yet sent, and since when none was
    _refusal: KeymatchError | None = None  # why a callback has stopped the parser

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what uvicorn passes; the application's state holds the guard and the refusals."""
        super().__init__(*arguments, **options)
        self._guard: ConnectionGuard = self.app_state["guard"]
        self._refusals: Refusals = self.app_state["refusals"]
        self._bounds = self._guard.settings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(cast(asyncio.Transport, LivingTransport(transport)))
        self._guard.enter(self)
        self._for_probes = self._guard.crowded
        if self._guard.full:
            self.end(TooManyConnections("the service holds as many connections as it can"))
        else:
            self.deadline = self._unsent_since = self.loop.time()
            self.deadline += self._bounds.header_seconds

    def data_received(self, data: bytes) -> None:
        """Parse what came; end the connection for what is no request or too much of one."""
        self._unset_keepalive_if_required()
        self._read = len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # no other protocol is spoken here: the request is answered as it is
        except HttpParserError:
            self.end(self._refusal or MalformedHttp("this is no request of HTTP/1.1"))
            return
        if self.phase == HEADER or self.phase == BODY:
            self._bytes += self._read
            most = self._bounds.header_bytes + READ_BYTES
            if self._bytes > most or len(self.headers) > MOST_FIELDS:
                self.end(self._too_large())

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self.phase, self._bytes = HEADER, 0
        self.deadline = self.loop.time() + self._bounds.header_seconds
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check the header, and start its request."""
        if self._bytes + self._read > self._bounds.header_bytes:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > self._bounds.header_bytes:
                self._refuse(self._too_large())
        if len(self.headers) > MOST_FIELDS:
            self._refuse(self._too_large())
        if self._for_probes and not self.url.startswith(PROBES):
            self._refuse(TooManyConnections("connections are scarce; only probes are answered"))
        if len(self.pipeline) >= MOST_PIPELINED:
            self._refuse(MalformedHttp("too many requests were sent before an answer"))
        self.phase, self._bytes, self._heard = BODY, 0, False
        self.deadline = self.loop.time() + self._bounds.body_seconds
        self.start_request()
        self.headers = []  # the request keeps its own; those of a trailer are counted and dropped

    def start_request(self) -> None:
        """Hand a request, whose header is accepted, to the application."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._bytes, self._heard = -self._read, True  # this read is added after it was parsed
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request was received as a whole."""
        super().on_message_complete()
        self.headers = []
        self.phase, self.deadline = ANSWER, math.inf
        self._await_request()

    def on_response_complete(self) -> None:
        """An answer was sent."""
        super().on_response_complete()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._guard.leave(self)
        super().connection_lost(exc)

    def check(self, now: float) -> None:
        """End the connection if its client is late."""
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if now - self._unsent_since > self._bounds.idle_seconds:
            self.transport.abort()
        elif now > self.deadline and not self.flow.read_paused:
            self._expire(now)

    def drop(self) -> None:
        """End the connection without an answer, to make room."""
        self.deadline = math.inf
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP; `msg` is uvicorn's own text."""
        self.end(MalformedHttp(msg))

    def end(self, error: KeymatchError) -> None:
        """Say why nothing more is taken from this connection, and close it."""
        self.deadline = math.inf
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if answering and not cycle.more_body:  # of a request that is complete
            cycle.keep_alive = False  # so its answer is the last
            self.flow.pause_reading()
            return
        if answering:
            cycle.disconnected = True  # its body will not come
            cycle.message_event.set()
        if not (answering and cycle.response_started):
            self.transport.write(self._refusals.last_answer(error))
        self.transport.close()

    def _await_request(self) -> None:
        if self.phase == ANSWER and self.cycle.response_complete:
            self.phase = IDLE
            self.deadline = self.loop.time() + self._bounds.idle_seconds

    def _expire(self, now: float) -> None:
        if self.phase == HEADER:
            seconds = self._bounds.header_seconds
            self.end(TooSlow(f"the header did not come within {seconds} seconds"))
        elif self.phase == IDLE or self.cycle.response_complete:
            self.drop()
        elif self._heard and _is_stream(cast(Scope, self.scope)):
            self._heard, self.deadline = False, now + self._bounds.idle_seconds
        else:
            seconds = self._bounds.body_seconds
            self.end(TooSlow(f"the body did not come within {seconds} seconds"))

    def _too_large(self) -> HeaderTooLarge:
        most = self._bounds.header_bytes
        return HeaderTooLarge(
            f"the header has more than the {most} bytes, or the {MOST_FIELDS} fields,"
            " that are allowed"
        )

    def _refuse(self, error: KeymatchError) -> None:
        self._refusal = error
        raise _Stopped


def _is_stream(scope: Scope) -> bool:
    return (header(scope, b"content-type") or b"").startswith(NDJSON.encode())
