"""Closed loop: each connection asks again as soon as it is answered. For throughput only."""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from time import perf_counter

from loadtests.clients.connection import Connection, require


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Answers a second over the connections, and how long each answer took."""

    connections: int
    seconds: float
    latencies: list[float]

    @property
    def per_second(self) -> float:
        """Answered requests a second."""
        return len(self.latencies) / self.seconds


def saturate(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float
) -> Throughput:
    """Ask on all connections for `seconds`, in a process of our own; every answer must be 200.

    `requests` are used once each, in order; the loop ends early when they run out.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own_process:
        return own_process.submit(
            saturate_here, port, list(requests), connections=connections, seconds=seconds
        ).result()


def saturate_here(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float
) -> Throughput:
    """As `saturate`, in this process: one thread over all connections."""
    latencies: list[float] = []
    started: dict[Connection, float] = {}
    wanted = iter(requests)
    with selectors.DefaultSelector() as selector, ExitStack() as open_connections:
        begin = perf_counter()
        for _, request in zip(range(connections), wanted, strict=False):
            connection = Connection(port)
            open_connections.callback(connection.close)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            started[connection] = perf_counter()
            connection.send(request)
        while started:
            for key, _ in selector.select():
                connection = key.data
                answer = connection.receive()
                if answer is None:
                    continue
                require(answer)
                now = perf_counter()
                latencies.append(now - started.pop(connection))
                following = next(wanted, None) if now - begin < seconds else None
                if following is None:
                    selector.unregister(connection.socket)
                else:
                    started[connection] = now
                    connection.send(following)
        return Throughput(
            connections=connections, seconds=perf_counter() - begin, latencies=latencies
        )
