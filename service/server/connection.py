"""uvicorn's HTTP connection with bounds, and with early refusal of predictions by their header.

The most that a client can make the service hold, and for how long:

| phase  | bytes                                          | until                                  |
|--------|------------------------------------------------|----------------------------------------|
| IDLE   | none                                           | `idle_seconds`; new: `header_seconds`  |
| HEADER | `header_bytes` and one read                    | `header_seconds` from its first byte   |
| BODY   | as the application reads, and those of HEADER  | `body_seconds`; a stream of labels: as |
|        |                                                | long as a piece comes in `idle_seconds`|
| ANSWER | `MOST_PIPELINED` requests and one read         | no limit: the service is at work       |
| LINGER | none: received bytes are dropped               | `LINGER_SECONDS`                       |

LINGER follows an answer whose request is incomplete, such as the refusal of a body. If the
connection were closed at once, a client that is still sending would lose its answer. If the whole
body were read, the client would decide how much a refusal costs.

In all phases, the connection ends if the client reads nothing of its answer for `idle_seconds`.
uvicorn itself ends only idle connections, and accepts headers of any length.

During overload a prediction is refused by its header. That costs only parsing the header and one
write: the application is not called, no task starts, and the body is skipped. The connection stays
open. If a refused client sends again at once, nothing is read from its socket during a pause. So
refusing one connection's requests takes at most a bounded share of the CPU.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
from collections.abc import Callable
from heapq import nsmallest
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from prometheus_client import Gauge
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.core.errors import (
    HeaderTooLarge,
    KeymatchError,
    MalformedHttp,
    TooManyConnections,
    TooSlow,
)
from service.engine.reading.task_queue import Arrival, Arrivals
from service.http.middleware import PATH, Refusals
from service.http.request_body import NDJSON, header
from service.settings import ServerSettings

READ_BYTES = 262_144  # most bytes that the event loop reads from a socket at once
MOST_PIPELINED = 64  # requests waiting behind the one in progress
# In a header or its trailers. A field of four bytes takes over a hundred as Python objects.
MOST_FIELDS = 256
PROBES = (b"/health/", b"/metrics")  # paths that are answered when connections are scarce
# The phases of a connection; plain numbers for speed, since each request compares several.
IDLE, HEADER, BODY, ANSWER, LINGER = range(5)
SKIPPED_BYTES = READ_BYTES  # skipped at most after an early answer; then the connection closes
LINGER_SECONDS = 5.0  # most clients send a body to its end before they read its answer
LINGER_PAUSE = 0.005  # after each read, so at most 50 MB/s, a few percent of a core
PAUSE_SECONDS = 0.01  # not read for so long after a second refusal within this time
SWEEP_SECONDS = 1.0  # between two sweeps; a connection may end this much after its deadline
SPARE_DESCRIPTORS = 128  # file descriptors for label log, segments, child processes and bundle
AT_ONCE = 64  # when room is needed, 1 in so many connections ends: searching is rare

log = logging.getLogger("keymatch")


class LivingTransport:
    """A transport that ignores writes once the connection has ended.

    When a client leaves, uvicorn tells only the connection's newest request. If the client sent
    several at once, the one in progress goes on with its answer. uvloop then raises a RuntimeError
    for each write, which would count as a defect of this service.
    """

    def __init__(
        self, transport: asyncio.Transport, *, lingers: Callable[[], bool] = lambda: False
    ) -> None:
        """Wrap a transport; if `lingers()` is true, `close` leaves it open for reading."""
        self._transport, self._lingers = transport, lingers
        self._ended = False

    def write(self, data: bytes) -> None:
        """Send bytes unless the connection has ended."""
        if not self.is_closing():
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self._ended or self._transport.is_closing()

    def close(self) -> None:
        """Flush and close the connection; a second call closes it without lingering."""
        if self.is_closing() or not self._lingers():
            self._transport.close()
            return
        self._ended = True
        self._transport.write_eof()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Stopped(Exception):
    """Stops the parser from a callback; the connection stores the reason."""


# Replaces the request in progress while its body is skipped. Its event wakes nobody.
_REFUSED = cast(
    RequestResponseCycle,
    SimpleNamespace(
        response_complete=True, disconnected=False, message_event=SimpleNamespace(set=lambda: None)
    ),
)


class ServiceConnection(HttpToolsProtocol):
    """uvicorn's connection within the bounds of `ServerSettings`.

    It also refuses predictions by their header, and tells a request if its client has left.
    """

    left = False  # whether the connection is closed
    received = 0.0  # when the newest request was completely received, by `monotonic`
    on_leave: Callable[[], None] | None = None  # called when this client leaves
    phase = IDLE
    deadline = math.inf  # of the client, by the loop's clock; infinite while the service is at work
    _for_probes = False
    _read = 0  # bytes of the present read
    _bytes = 0  # bytes read of a header, or since the last piece of a body
    _skipped = 0  # bytes read of a body after its answer
    _heard = False  # whether a piece of the body arrived since the deadline was set
    _unsent, _unsent_since = 0, 0.0  # unsent bytes of answers, and when sending last progressed
    _declined = b""  # a header after removing its offer of another protocol
    _refusal: KeymatchError | None = None  # why a callback stopped the parser
    _body_bytes: int | None = None  # body size of a prediction being received
    _arrival: Arrival | None = None  # arrival of a received prediction until it is queued
    _refused_at = 0.0  # time of the last refusal, by the loop's clock
    _keep_alive = True  # whether to keep the connection after the present refusal

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Accept uvicorn's arguments; the application's state holds the shared objects."""
        super().__init__(*arguments, **options)
        self._guard: ConnectionGuard = self.app_state["guard"]
        self._refusals: Refusals = self.app_state["refusals"]
        self._arrivals: Arrivals = self.app_state["arrivals"]
        self._bounds = self._guard.settings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a client, or refuse it if there are too many."""
        self._socket = transport
        living = LivingTransport(transport, lingers=self._lingers)
        super().connection_made(cast(asyncio.Transport, living))
        self._guard.enter(self)
        self._for_probes = self._guard.crowded
        if self._guard.full:
            self.end(TooManyConnections("the service holds as many connections as it can"))
        else:
            self.deadline = self._unsent_since = self.loop.time()
            self.deadline += self._bounds.header_seconds

    def data_received(self, data: bytes) -> None:
        """Parse bytes; end the connection if they are malformed or too many."""
        if self.phase == LINGER:
            self._pause_reading(LINGER_PAUSE)
            return
        self._unset_keepalive_if_required()
        self._read = len(data)
        try:
            self._parse(data)
        except HttpParserError:
            if self.phase != LINGER:
                self.end(self._refusal or MalformedHttp("this is no request of HTTP/1.1"))
            return
        if self.phase == HEADER or self.phase == BODY:
            self._bytes += self._read
            most = self._bounds.header_bytes + READ_BYTES
            if self._bytes > most or len(self.headers) > MOST_FIELDS:
                self.end(self._too_large())
            elif self.phase == BODY and self.cycle.response_complete:
                self._skip()

    def _parse(self, data: bytes) -> None:
        """Feed the parser, and ignore a request's offer of another protocol.

        After such a header the parser expects the other protocol: it drops the body's framing and
        reports a complete message. So a new parser gets the header without the offer.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except HttpParserUpgrade as offer:
                data = self._declined + data[offer.args[0] :]
                self._declined = b""
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn

    def on_message_begin(self) -> None:
        """Start the header's deadline at the first byte of a request."""
        self._stop_if_lingering()
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
        if self.parser.should_upgrade():
            self._decline()
            return
        self.phase, self._bytes, self._skipped, self._heard = BODY, 0, 0, False
        self.deadline = self.loop.time() + self._bounds.body_seconds
        self.start_request()
        self.headers = []  # the request keeps the list; a trailer's fields are counted and dropped

    def start_request(self) -> None:
        """Pass a request to the application, unless it is a prediction that must be refused."""
        if self.url == PATH and self.parser.get_method() == b"POST":
            self.scope["state"]["client"] = self
            # A pipelined request cannot be refused here: earlier answers must be sent first.
            if self.cycle is None or self.cycle.response_complete:
                body_bytes = int(header(cast(Scope, self.scope), b"content-length") or 0)
                error = self._arrivals.refusal(body_bytes)
                if error is not None:
                    self._refuse_prediction(error)
                    return
                self._body_bytes = body_bytes
        super().on_headers_complete()
        if self._guard.leaving():
            newest = self.pipeline[0][0] if self.pipeline else self.cycle
            newest.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Process a piece of the body."""
        self._bytes, self._heard = -self._read, True  # the present read is added after parsing
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body of a request; a prediction now counts as arriving."""
        self._stop_if_lingering()
        if self._declined:  # the same request will be parsed again
            return
        super().on_message_complete()
        self.headers = []
        self.phase, self.deadline = ANSWER, math.inf
        self._await_request()
        if self.cycle is _REFUSED:
            if not self._keep_alive:
                self.transport.close()
            return
        self.received = monotonic()
        # Counted only from here on: clients with slow bodies must not keep others out.
        if self._body_bytes is not None:
            self._end_arrival()
            self._arrival = self._arrivals.begin(self._body_bytes)
            self._body_bytes = None

    def on_response_complete(self) -> None:
        """Continue with the next request after an answer was sent."""
        self._end_arrival()
        super().on_response_complete()
        if self.phase == BODY and self.expect_100_continue:
            # Its body may or may not come, so the next request's start is unknown.
            self.transport.close()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client has left, and tell the requests that work for it."""
        self.left = True
        self._end_arrival()
        if self.on_leave is not None:
            self.on_leave()
        self._guard.leave(self)
        super().connection_lost(exc)

    def arrived(self, queries: int) -> None:
        """Note that the request has reached the engine; see `Client`."""
        if self._arrival is not None:
            self._arrival.end(queries)

    def check(self, now: float) -> None:
        """End the connection if its client has missed a deadline."""
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if now - self._unsent_since > self._bounds.idle_seconds:
            self.transport.abort()
        elif now > self.deadline and (self.phase == LINGER or not self.flow.read_paused):
            self._expire(now)

    def drop(self) -> None:
        """End the connection without an answer, to make room."""
        self.deadline = math.inf
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request; `msg` is uvicorn's text."""
        self.end(MalformedHttp(msg))

    def end(self, error: KeymatchError) -> None:
        """Send the refusal and close the connection."""
        self.deadline = math.inf
        if isinstance(error, TooSlow):
            self.phase = IDLE  # no lingering: the client is not sending
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if answering and not cycle.more_body:  # the answered request is complete
            cycle.keep_alive = False  # its answer is the connection's last
            self.flow.pause_reading()
            return
        if answering:
            cycle.disconnected = True  # its body will not be read
            cycle.message_event.set()
        if not (answering and cycle.response_started):
            self.transport.write(self._refusals.last_answer(error))
        self.transport.close()

    def _lingers(self) -> bool:
        """Start lingering if the client may still be sending; returns whether it lingers."""
        if self.phase != HEADER and self.phase != BODY:
            return False
        self.phase, self.deadline = LINGER, self.loop.time() + LINGER_SECONDS
        self._pause_reading(LINGER_PAUSE)
        return True

    def _skip(self) -> None:
        """Count the bytes read of an answered body; close the connection if there are too many."""
        self._skipped += self._read
        if self._skipped > SKIPPED_BYTES:
            self.transport.close()

    def _stop_if_lingering(self) -> None:
        if self.phase == LINGER:
            raise _Stopped

    def _pause_reading(self, seconds: float) -> None:
        self.flow.pause_reading()
        self.loop.call_later(seconds, self._read_again)

    def _read_again(self) -> None:
        if not self._socket.is_closing():
            self.flow.resume_reading()

    def _decline(self) -> None:
        """Store the present header without its offer of another protocol."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(MalformedHttp("this is no proxy: CONNECT is not served"))
        fields = [
            b"%b: %b\r\n" % (name, _without_upgrade(value) if name == b"connection" else value)
            for name, value in self.headers
            if name not in (b"upgrade", b"http2-settings")
        ]
        version = self.parser.get_http_version().encode()
        line = b"%b %b HTTP/%b\r\n" % (method, self.url, version)
        self._declined = b"".join((line, *fields, b"\r\n"))

    def _await_request(self) -> None:
        if self.phase == ANSWER and self.cycle.response_complete:
            self.phase = IDLE
            self.deadline = self.loop.time() + self._bounds.idle_seconds

    def _expire(self, now: float) -> None:
        if self.phase == HEADER:
            seconds = self._bounds.header_seconds
            self.end(TooSlow(f"the header did not come within {seconds} seconds"))
        elif self.phase == IDLE or self.phase == LINGER or self.cycle.response_complete:
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

    def _refuse_prediction(self, error: KeymatchError) -> None:
        # A client that expects 100-continue may or may not send its body after this answer, so its
        # next request's start would be unknown.
        self._keep_alive = (
            not self._guard.leaving()
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() != "1.0"
            and not self.expect_100_continue
        )
        scope = cast(Scope, self.scope)  # uvicorn's own type for the same dictionary
        self.cycle = _REFUSED
        self.server_state.total_requests += 1
        self.transport.write(self._refusals.answer(scope, error, keep_alive=self._keep_alive))
        if self.expect_100_continue:
            self.transport.close()
            return
        now = self.loop.time()
        if now - self._refused_at < PAUSE_SECONDS and not self.flow.read_paused:
            self._pause_reading(PAUSE_SECONDS)
        self._refused_at = now

    def _end_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.end()
            self._arrival = None


def _without_upgrade(connection: bytes) -> bytes:
    """Remove the upgrade's options from the value of a `Connection` header."""
    options = [option.strip() for option in connection.split(b",")]
    kept = [one for one in options if one.lower() not in (b"upgrade", b"http2-settings")]
    return b", ".join(kept)


def _is_stream(scope: Scope) -> bool:
    return (header(scope, b"content-type") or b"").startswith(NDJSON.encode())


class ConnectionGuard:
    """Counts one worker's connections, and ends late ones. For its event loop.

    A client that connects and sends little occupies a file descriptor, and nothing else would end
    its connection. So each connection has a deadline while it waits for its client. One sweep per
    second checks all deadlines, which costs less than a timer per request.

    At `connections`, those with the nearest deadline end, so idle clients never keep new ones out.
    A connection that is sending a header is due before one that is idle between two requests. If
    the service is at work for all connections, a few more are accepted for probes only.
    """

    def __init__(
        self,
        settings: ServerSettings,
        gauge: Gauge | None = None,
        *,
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raise this process's limit of open files if the settings need more.

        `gauge` shows the number of connections. `leaving` returns whether each connection is to end
        with its next answer.
        """
        self.settings, self.leaving, self._gauge = settings, leaving, gauge
        self.most = _affordable(settings)
        self._open: set[ServiceConnection] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def crowded(self) -> bool:
        """Return whether the newest connection may only probe."""
        return len(self._open) > self.most

    @property
    def full(self) -> bool:
        """Return whether no connection, not even a probe, can be accepted."""
        return len(self._open) > self.most + self.settings.probe_connections

    def enter(self, connection: ServiceConnection) -> None:
        """Count a new connection, and make room for it if necessary."""
        self._open.add(connection)
        if self.crowded:
            self._make_room()
        self._show()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def leave(self, connection: ServiceConnection) -> None:
        """Count a connection that has ended."""
        self._open.discard(connection)
        self._show()

    def _show(self) -> None:
        if self._gauge is not None:
            self._gauge.set(len(self._open))

    def _make_room(self) -> None:
        waiting = [one for one in self._open if one.deadline < math.inf]
        for connection in nsmallest(1 + self.most // AT_ONCE, waiting, key=lambda c: c.deadline):
            self._open.discard(connection)
            connection.drop()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self._open):
            connection.check(now)
        self._timer = loop.call_later(SWEEP_SECONDS, self._sweep) if self._open else None


def _affordable(settings: ServerSettings) -> int:
    """Return how many connections the limit of open files allows, at most `settings.connections`.

    A process without a free descriptor resets every new connection, even a probe's.
    """
    beside = settings.probe_connections + SPARE_DESCRIPTORS
    needed = settings.connections + beside
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings.connections
    most = max(1, soft - beside)
    log.warning(
        "the limit of open files allows fewer connections than are configured",
        extra={"open_files": soft, "connections": most, "configured": settings.connections},
    )
    return most
