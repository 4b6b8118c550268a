"""Requests between the socket and the queue: refused before their bodies are read, or counted."""

from __future__ import annotations

from service.core.errors import DelayExceeded, KeymatchError
from service.engine.reading.lane import Lane
from service.engine.reading.task_queue import TaskQueue

MOST = 64  # requests on their way at once, which the event loop reads in some 50 milliseconds

_FIRST_GUESS = 40.0  # bytes of a body for each of its queries
_WEIGHT = 0.05  # of the newest body in the mean


class Arrivals:
    """Decides by a request's header whether it may join the queue; belongs to the event loop.

    Many requests can come in before the first of them has been read and queued, so those on their
    way count as if they waited. How many queries a body holds is guessed from its length.
    """

    def __init__(self, queue: TaskQueue) -> None:
        """Guard `queue`."""
        self._queue = queue
        self._bytes_per_query = _FIRST_GUESS
        self._requests = 0  # on their way

    def refusal(self, body_bytes: int) -> KeymatchError | None:
        """Why a request with such a body is refused, None where it may come."""
        if self._requests >= MOST:
            return DelayExceeded("too many requests come in at once", retry_after=1)
        queries = self._guess(body_bytes)
        return self._queue.refusal(self._queue.lane(queries), queries)

    def begin(self, body_bytes: int) -> Arrival:
        """Count a request until its `Arrival` ends."""
        queries = self._guess(body_bytes)
        self._requests += 1
        return Arrival(self, self._queue.lane(queries), queries, body_bytes)

    def end(self, body_bytes: int, queries: int) -> None:
        """Note that a request has come in, and what its body held, where that is known."""
        self._requests -= 1
        if queries:
            self._bytes_per_query += _WEIGHT * (body_bytes / queries - self._bytes_per_query)

    def _guess(self, body_bytes: int) -> int:
        return max(1, round(body_bytes / self._bytes_per_query))


class Arrival:
    """One request on its way to the queue, counted in its lane until `end`."""

    __slots__ = ("_arrivals", "_body_bytes", "_counted", "_lane", "_queries")

    def __init__(self, arrivals: Arrivals, lane: Lane, queries: int, body_bytes: int) -> None:
        self._arrivals, self._lane = arrivals, lane
        self._queries, self._body_bytes, self._counted = queries, body_bytes, True
        lane.arriving += queries

    def end(self, queries: int = 0) -> None:
        """Count the request no longer; `queries` is how many it turned out to hold, if known."""
        if self._counted:
            self._counted = False
            self._lane.arriving -= self._queries
            self._arrivals.end(self._body_bytes, queries)
