"""Open loop: each request starts when it is due, even if earlier ones are not answered yet.

Latency counts from the intended start. A closed loop sends nothing while the server is slow, so it
leaves out exactly the requests that would have waited (coordinated omission).

One thread sends and one receives. Both sleep in the kernel: the timers of an event loop round up to
a millisecond, and a busy wait would take a core from the server.
"""

from __future__ import annotations

import queue
import selectors
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from time import perf_counter, sleep

import numpy as np

from loadtests.clients.connection import Connection, RequestFailed

_SPARE_CONNECTIONS = 4  # opened before the loop starts; more are opened when needed
_LAST_ANSWER_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Requests of one kind, with their intended starts in seconds after the loop's start."""

    name: str
    requests: Sequence[bytes]
    starts: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The answers and failures of one stream."""

    # Seconds from the intended start, in order of the answers.
    latencies: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)  # seconds by which the client sent late
    failures: dict[str, int] = field(default_factory=dict)  # HTTP status or error name -> count


def poisson_starts(*, rate: float, seconds: float, seed: int) -> list[float]:
    """Return starts like those of independent users: exponential gaps with mean 1 / rate."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds))
    return [float(start) for start in np.cumsum(gaps)]


def drive(port: int, streams: Sequence[Stream]) -> dict[str, Outcome]:
    """Send all streams at the same time from a separate process; return outcomes by stream name."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client_process:
        return client_process.submit(drive_in_this_process, port, list(streams)).result()


def drive_in_this_process(port: int, streams: Sequence[Stream]) -> dict[str, Outcome]:
    """Like `drive`, but send all streams from two threads of this process."""
    return _OpenLoop(port, streams).run()


class _OpenLoop:
    def __init__(self, port: int, streams: Sequence[Stream]) -> None:
        self._port = port
        self._plan = sorted(
            (start, number, stream.name, request)
            for stream in streams
            for number, (start, request) in enumerate(
                zip(stream.starts, stream.requests, strict=True)
            )
        )
        self._outcomes = {stream.name: Outcome() for stream in streams}
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._unanswered: dict[Connection, tuple[str, float]] = {}  # stream, and when it was due
        self._selector = selectors.DefaultSelector()
        self._answered = 0

    def run(self) -> dict[str, Outcome]:
        for _ in range(_SPARE_CONNECTIONS):
            self._idle.put(self._connect())
        receiver = threading.Thread(target=self._receive, name="receiver")
        receiver.start()
        self._send()
        receiver.join()
        for key in list(self._selector.get_map().values()):
            key.data.close()
        self._selector.close()
        return self._outcomes

    def _send(self) -> None:
        start = perf_counter() + 0.05
        for offset, _, name, request in self._plan:
            due = start + offset
            ahead = due - perf_counter()
            if ahead > 0:
                sleep(ahead)
            connection = self._idle_connection()
            self._unanswered[connection] = name, due
            self._outcomes[name].late.append(perf_counter() - due)
            connection.send(request)

    def _receive(self) -> None:
        quiet_since = perf_counter()
        while self._answered < len(self._plan):
            events = self._selector.select(timeout=0.5)
            now = perf_counter()
            if events:
                quiet_since = now
            elif now - quiet_since > _LAST_ANSWER_SECONDS:
                for stream, _ in self._unanswered.values():
                    self._fail(stream, "no answer")
                return
            for key, _ in events:
                self._take(key.data)

    def _take(self, connection: Connection) -> None:
        try:
            answer = connection.receive()
        except (OSError, RequestFailed) as error:
            self._selector.unregister(connection.socket)
            connection.close()
            request = self._unanswered.pop(connection, None)
            if request is not None:  # if None, the connection was idle and no answer is lost
                self._answered += 1
                self._fail(request[0], type(error).__name__)
            return
        if answer is None:
            return
        now = perf_counter()
        stream, due = self._unanswered.pop(connection)
        self._answered += 1
        if answer[0] == 200:
            self._outcomes[stream].latencies.append(now - due)
        else:
            self._fail(stream, str(answer[0]))
        self._idle.put(connection)

    def _fail(self, stream: str, reason: str) -> None:
        failures = self._outcomes[stream].failures
        failures[reason] = failures.get(reason, 0) + 1

    def _idle_connection(self) -> Connection:
        """Return an idle connection that the server has not closed, or a new one."""
        while True:
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                return self._connect()
            if not connection.closed:
                return connection

    def _connect(self) -> Connection:
        connection = Connection(self._port)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        return connection
