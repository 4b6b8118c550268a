"""Closed loop: each connection sends its next request as soon as it is answered.

It measures throughput. Its latencies leave out the waiting that an open loop shows.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from time import perf_counter

from loadtests.clients.connection import Connection, require

REFUSED = 429


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Seconds of each answer, over so many connections, in a run of `seconds`.

    `refused` requests got 429; they are no answers.
    """

    connections: int
    seconds: float
    latencies: list[float]
    refused: int = 0

    @property
    def per_second(self) -> float:
        """Answered requests a second."""
        return len(self.latencies) / self.seconds


def saturate(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float
) -> Throughput:
    """Send requests on all connections for `seconds`, from a separate process.

    `requests` are used once each, in order; the loop ends early when they run out. Raises
    `RequestFailed` for an answer that is neither 200 nor 429.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client_process:
        return client_process.submit(
            saturate_in_this_process,
            port,
            list(requests),
            connections=connections,
            seconds=seconds,
        ).result()


def saturate_in_this_process(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float
) -> Throughput:
    """As `saturate`, but one thread of this process serves all connections."""
    with ExitStack() as resources:
        loop = _ClosedLoop(
            requests=iter(requests),
            seconds=seconds,
            selector=resources.enter_context(selectors.DefaultSelector()),
        )
        for _ in range(connections):
            connection = Connection(port)
            resources.callback(connection.close)
            loop.start(connection)
        while loop.sent_at:
            loop.receive()
        return Throughput(
            connections=connections,
            seconds=perf_counter() - loop.begin,
            latencies=loop.latencies,
            refused=loop.refused,
        )


@dataclass(kw_only=True)
class _ClosedLoop:
    requests: Iterator[bytes]
    seconds: float
    selector: selectors.BaseSelector
    begin: float = field(default_factory=perf_counter)
    sent_at: dict[Connection, float] = field(default_factory=dict)  # of unanswered requests
    latencies: list[float] = field(default_factory=list)
    refused: int = 0

    def start(self, connection: Connection) -> None:
        """Send a connection's first request, if any request is left."""
        request = next(self.requests, None)
        if request is not None:
            self.selector.register(connection.socket, selectors.EVENT_READ, connection)
            self.sent_at[connection] = perf_counter()
            connection.send(request)

    def receive(self) -> None:
        """Wait for answers; each connection that was answered sends its next request."""
        for key, _ in self.selector.select():
            connection = key.data
            answer = connection.receive()
            if answer is None:
                continue
            now = perf_counter()
            sent_at = self.sent_at.pop(connection)
            if answer[0] == REFUSED:
                self.refused += 1
            else:
                require(answer)
                self.latencies.append(now - sent_at)
            request = next(self.requests, None) if now - self.begin < self.seconds else None
            if request is None:
                self.selector.unregister(connection.socket)
            else:
                self.sent_at[connection] = now
                connection.send(request)
