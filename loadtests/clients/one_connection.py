"""One connection that sends its next request when the last one is answered."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from loadtests.clients.connection import Connection, require
from loadtests.measure.processor_time import with_processor_time
from training.experiments.service_process import Server


def one_after_the_other(server: Server, requests: Sequence[bytes]) -> tuple[list[float], float]:
    """Seconds of each request over one connection, and the processor seconds a request."""
    connection = Connection(server.port)

    def ask(request: bytes) -> float:
        start = perf_counter()
        require(connection.ask(request))
        return perf_counter() - start

    try:
        seconds, processor = with_processor_time(
            server.pid, lambda: [ask(request) for request in requests]
        )
    finally:
        connection.close()
    return seconds, processor / len(requests)
