"""Refusals that are written before a request exists: prebuilt, and counted.

The application would take a good part of the time of an answer to say 429. The server's connection
(service/server/connection.py) asks here as soon as it has a header of POST /predict. What is no
request at all never reaches the application, so its answer is made here, too.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from random import Random

from starlette.types import Scope

from service.core.errors import KeymatchError
from service.engine.reading.arrivals import Arrival, Arrivals
from service.http import problems
from service.http.browser.headers import STRICT
from service.http.middleware import UNMATCHED, new_request_id, request_id_of
from service.telemetry import Telemetry

PATH = b"/predict"
MOST_ANSWERS = 256  # that are kept prebuilt
RECORD_SECONDS = 0.25  # between two additions to the metrics, and two lines of the log

log = logging.getLogger("keymatch.access")


class Refusals:
    """Says which requests are refused, and with which bytes; belongs to the event loop."""

    def __init__(self, arrivals: Arrivals, telemetry: Telemetry) -> None:
        """Count in the metrics of this process."""
        self._arrivals, self._telemetry = arrivals, telemetry
        self._random = Random()
        # By class and message: the `detail` of an answer is the message of its error.
        self._answers: dict[tuple[type[KeymatchError], str], tuple[int, bytes, bytes]] = {}
        # By route, status and reason, since they were last recorded.
        self._counts: dict[tuple[str, int, str], int] = {}

    def begin(self, body_bytes: int) -> Arrival:
        """Count a request that comes in, until its arrival ends."""
        return self._arrivals.begin(body_bytes)

    def refusal(self, body_bytes: int) -> KeymatchError | None:
        """Why a request with a body of so many bytes is refused, None where it may come in."""
        return self._arrivals.refusal(body_bytes)

    def answer(self, scope: Scope, error: KeymatchError, *, keep_alive: bool) -> bytes:
        """The whole answer in HTTP/1.1, the same as the application's, and count it."""
        return self._answer(PATH.decode(), request_id_of(scope, self._random), error, keep_alive)

    def last_answer(self, error: KeymatchError) -> bytes:
        """The whole answer to what is no request, after which the connection ends; count it."""
        return self._answer(UNMATCHED, new_request_id(self._random), error, keep_alive=False)

    def _answer(
        self, route: str, request_id: bytes, error: KeymatchError, keep_alive: bool
    ) -> bytes:
        status, before, after = self._prebuilt(error)
        if not self._counts:
            asyncio.get_running_loop().call_later(RECORD_SECONDS, self.record)
        counted = (route, status, problems.reason(error) or "refused")
        self._counts[counted] = self._counts.get(counted, 0) + 1
        close = b"" if keep_alive else b"\r\nconnection: close"
        return b"".join((before, request_id, close, after))

    def _prebuilt(self, error: KeymatchError) -> tuple[int, bytes, bytes]:
        key = (type(error), str(error))
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= MOST_ANSWERS:  # of messages with a number that changes
                self._answers.clear()
            answer = self._answers[key] = _build(error)
        return answer

    def record(self) -> None:
        """Add what was counted to the metrics, and log it in a line for each kind."""
        counts, self._counts = self._counts, {}
        for (route, status, reason), count in counts.items():
            self._telemetry.rejected.labels(reason).inc(count)
            self._telemetry.requests.labels(route, status).inc(count)
            log.info(
                "requests refused by their header",
                extra={"route": route, "status": status, "reason": reason, "requests": count},
            )


def _build(error: KeymatchError) -> tuple[int, bytes, bytes]:
    """The status, and what stands before and after the request id, in the answer to `error`."""
    response = problems.from_error(error)
    status = response.status_code
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    for name, value in (*response.raw_headers, *STRICT):
        head += name + b": " + value + b"\r\n"
    return status, head + b"x-request-id: ", b"\r\n\r\n" + bytes(response.body)
