"""One HTTP connection: uvicorn's, which refuses predictions by their header during overload.

A refusal costs the parsing of a header and one write: no scope reaches the application, no task
starts, and the body is skipped. The connection stays open. A client that is refused and sends again
at once waits until a pause is over, since nothing is read from its socket meanwhile; so no single
connection makes refusing cost more than a bounded share of the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.core.errors import KeymatchError
from service.engine.reading.arrivals import Arrival
from service.http.refusals import PATH
from service.http.request_body import header
from service.server.bounded_connection import BoundedConnection

PAUSE_SECONDS = 0.01  # a connection that is refused again within this time is not read for as long


class _Nobody:
    """In place of the event with which uvicorn wakes a request that waits for its body."""

    def set(self) -> None:
        """Nobody waits."""


class _Refused:
    """Stands for the request in progress while its body is skipped."""

    response_complete = True
    disconnected = False
    message_event = _Nobody()


_REFUSED = cast(RequestResponseCycle, _Refused)


class ServiceConnection(BoundedConnection):
    """Refuses requests, and tells those that were let in when their client has left."""

    left = False  # whether the connection is closed
    received = 0.0  # when the newest request had come in as a whole, by `monotonic`
    on_leave: Callable[[], None] | None = None  # what waits for this client to leave

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what uvicorn passes; the application's state holds the refusals."""
        super().__init__(*arguments, **options)
        self._body_bytes: int | None = None  # of the prediction that is let in and not yet received
        self._arrival: Arrival | None = None  # of the one that was received and not yet queued
        self._refused_at = 0.0  # by the event loop's clock
        self._keep_alive = True  # after the refusal in progress

    def arrived(self, queries: int) -> None:
        """The request has reached the engine; see `Client`."""
        if self._arrival is not None:
            self._arrival.end(queries)

    def start_request(self) -> None:
        """Refuse a prediction, or start the request."""
        if self.url == PATH and self.parser.get_method() == b"POST":
            self.scope["state"]["client"] = self
            # The answer to a pipelined request must wait for those before it.
            if self.cycle is None or self.cycle.response_complete:
                body_bytes = int(header(cast(Scope, self.scope), b"content-length") or 0)
                error = self._refusals.refusal(body_bytes)
                if error is not None:
                    self._refuse_prediction(error)
                    return
                self._body_bytes = body_bytes
        super().start_request()

    def on_message_complete(self) -> None:
        """A request was received as a whole; after a refusal, be ready for the next."""
        super().on_message_complete()
        if self.cycle is _REFUSED:
            if not self._keep_alive:
                self.transport.close()
            return
        self.received = monotonic()
        # Counted only now: clients that send their bodies slowly must not keep others out.
        if self._body_bytes is not None:
            self._end_arrival()
            self._arrival = self._refusals.begin(self._body_bytes)
            self._body_bytes = None

    def on_response_complete(self) -> None:
        """An answer was sent."""
        self._end_arrival()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or the answer to its last request was sent."""
        self.left = True
        self._end_arrival()
        if self.on_leave is not None:
            self.on_leave()
        super().connection_lost(exc)

    def _refuse_prediction(self, error: KeymatchError) -> None:
        # A client that expects 100-continue may or may not send its body after this answer, so
        # nobody could tell where its next request begins.
        self._keep_alive = (
            self.parser.should_keep_alive()
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
            self.flow.pause_reading()
            self.loop.call_later(PAUSE_SECONDS, self._read_again)
        self._refused_at = now

    def _read_again(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _end_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.end()
            self._arrival = None
