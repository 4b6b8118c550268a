"""Requests in an open or a closed loop, sent by one thread that takes little CPU time.

In an open loop, each request starts when it is due, even if earlier ones are not answered yet.
Latency counts from the intended start. A closed loop sends nothing while the server is slow, so it
leaves out exactly the requests that would have waited (coordinated omission).

The client shares its cores with the server. It sends prepared bytes, reads only the status and the
length of an answer, and keeps figures in arrays. It sleeps in the kernel until the next start: the
timers of an event loop round up to a millisecond, and a busy wait would take a core.
"""

from __future__ import annotations

import select
import socket
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing import get_context
from time import perf_counter, process_time

import numpy as np
from numpy.typing import NDArray

from loadtests.connection import ended_by_server
from service.child_server import HOST

UNANSWERED, BROKEN, LEFT = 0, 1, 2  # used instead of an HTTP status
NAMES = {UNANSWERED: "unanswered", BROKEN: "broken", LEFT: "left"}
ANSWERED, REFUSED = 200, 429
_SPARE_CONNECTIONS = 4  # opened before the loop starts; more are opened when needed
_LAST_ANSWER_SECONDS = 30.0
_WAKE_SECONDS = 0.001
_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Requests of one kind, repeated in order, and their intended starts in ascending seconds."""

    name: str = ""
    requests: Sequence[bytes]
    starts: Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The requests to send, none of them after `until` seconds, if given.

    With `until` and all starts at 0 this is a closed loop: each connection sends its next request
    as soon as it is answered. Requests that are due while all `connections` are busy wait, and
    their latency counts in an open loop. `idle` additional connections stay open and unused.
    `leaving` (0 to 1) is the share of requests after which the client disconnects, `patience`
    seconds after sending. A `coarse` client wakes at most once per millisecond for starts.
    """

    streams: Sequence[Stream]
    until: float | None = None
    connections: int = 500
    idle: int = 0
    leaving: float = 0.0
    patience: float = 0.02
    coarse: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The answers and failures of one stream."""

    latencies: list[float] = field(default_factory=list)  # seconds from the intended start
    late: list[float] = field(default_factory=list)  # seconds by which the client sent late
    failures: dict[str, int] = field(default_factory=dict)  # HTTP status or failure -> count


@dataclass(frozen=True, kw_only=True)
class Fate:
    """The result of each sent request, in the order of their starts.

    `status` is an HTTP status, `UNANSWERED`, `BROKEN` or `LEFT`. `seconds` count from the intended
    start (in a closed loop: from sending) to the answer. `cpu` is the client's CPU time,
    `idle_lost` the number of its idle connections that the server had closed at the end.
    """

    stream: NDArray[np.int16]  # place of each request's stream in the plan
    starts: NDArray[np.float64]
    late: NDArray[np.float64]
    status: NDArray[np.int16]
    seconds: NDArray[np.float64]
    cpu: float
    idle_lost: int

    def outcome(self, stream: int = 0) -> Outcome:
        """Return the outcome of the stream at a place in the plan."""
        of_stream = self.stream == stream
        status = self.status[of_stream]
        answered = status == ANSWERED
        failed = Counter(status[~answered].tolist())
        return Outcome(
            latencies=self.seconds[of_stream][answered].tolist(),
            late=self.late[of_stream].tolist(),
            failures={NAMES.get(status, str(status)): count for status, count in failed.items()},
        )


def poisson_starts(*, rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Return starts like those of independent users: exponential gaps with mean 1 / rate."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds))
    return np.cumsum(gaps)


def drive(port: int, streams: Sequence[Stream]) -> Mapping[str, Outcome]:
    """Send all streams in an open loop from another process; return outcomes by stream name."""
    fate = send(port, Plan(streams=streams))
    return {stream.name: fate.outcome(place) for place, stream in enumerate(streams)}


def send(port: int, plan: Plan) -> Fate:
    """Send everything from a separate process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client_process:
        return client_process.submit(send_in_this_process, port, plan).result()


def send_in_this_process(port: int, plan: Plan) -> Fate:
    """Like `send`, but send everything from this thread."""
    return _Loop(port, plan).run()


class _Loop:
    def __init__(self, port: int, plan: Plan) -> None:
        self._port, self._plan = port, plan
        starts = np.concatenate([np.asarray(one.starts, np.float64) for one in plan.streams])
        stream = np.repeat(np.arange(len(plan.streams)), [len(one.starts) for one in plan.streams])
        order = np.argsort(starts, kind="stable")
        self._starts, self._stream = starts[order], stream[order].astype(np.int16)
        turns = [cycle(one.requests) for one in plan.streams]
        self._requests = [next(turns[place]) for place in self._stream.tolist()]
        count = len(starts)
        self._status = np.full(count, UNANSWERED, np.int16)
        self._sent_at, self._ended = np.zeros(count), np.zeros(count)
        self._leaves = np.random.default_rng(0).random(count) < plan.leaving
        self._sent = 0
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._free: deque[int] = deque()  # file descriptors, the longest unused first
        self._number: dict[int, int] = {}  # descriptor -> number of its unanswered request
        self._pieces: dict[int, bytes] = {}  # descriptor -> the arrived part of its answer
        self._unsent: dict[int, bytes] = {}  # descriptor -> request, until it can be sent
        self._leavers: deque[tuple[float, int, int]] = deque()  # when, descriptor, request number

    def run(self) -> Fate:
        plan = self._plan
        unused = [socket.create_connection((HOST, self._port)) for _ in range(plan.idle)]
        spare = min(_SPARE_CONNECTIONS, plan.connections)
        self._free.extend([self._connect() for _ in range(spare)])
        starts, count, cpu = self._starts.tolist(), len(self._starts), process_time()
        self._begin = perf_counter()
        end = (starts or [0.0])[-1] if plan.until is None else plan.until
        last = end + _LAST_ANSWER_SECONDS
        while (now := perf_counter() - self._begin) < last:
            if plan.until is not None and now > plan.until:
                count = self._sent
            while self._sent < count and starts[self._sent] <= now and self._send(now):
                pass
            if self._sent == count and not self._number:
                break
            self._leave(now)
            self._wait(starts[self._sent] if self._sent < count else last)
        cpu = process_time() - cpu
        lost = sum(ended_by_server(connection) for connection in unused)
        for connection in (*unused, *self._sockets.values()):
            connection.close()
        self._poll.close()
        sent = slice(self._sent)
        begun = self._starts if plan.until is None else self._sent_at
        return Fate(
            stream=self._stream[sent],
            starts=begun[sent],
            late=(self._sent_at - self._starts)[sent],
            status=self._status[sent],
            seconds=(self._ended - begun)[sent],
            cpu=cpu,
            idle_lost=lost,
        )

    def _wait(self, next_start: float) -> None:
        """Receive what arrives before the next start."""
        ahead = next_start - (perf_counter() - self._begin)
        # A request that waits for a connection is due already; an answer will free one.
        ahead = ahead if ahead > 0 and not self._plan.coarse else _WAKE_SECONDS
        if self._leavers or self._plan.until is not None:
            ahead = min(ahead, _WAKE_SECONDS)
        # epoll counts in milliseconds; select on its descriptor in microseconds.
        select.select([self._poll], [], [], ahead)
        for file, event in self._poll.poll(0):
            if event & select.EPOLLOUT and file in self._unsent:
                self._poll.modify(file, select.EPOLLIN)
                self._write(file, self._unsent.pop(file))
            else:
                self._receive(file)

    def _send(self, now: float) -> bool:
        """Send the next request; return False if no connection is free."""
        if self._free:
            file = self._free.popleft()
        elif len(self._sockets) < self._plan.connections:
            file = self._connect(wait=False)
        else:
            return False
        number = self._sent
        self._sent += 1
        self._number[file] = number
        self._sent_at[number] = now
        if self._leaves[number]:
            self._leavers.append((now + self._plan.patience, file, number))
        self._write(file, self._requests[number])
        return True

    def _write(self, file: int, request: bytes) -> None:
        try:
            sent = self._sockets[file].send(request)
        except BlockingIOError:  # the connection is still being opened
            sent = 0
        except OSError:
            self._end(file, BROKEN)
            return
        if sent < len(request):
            self._unsent[file] = request[sent:]
            self._poll.modify(file, select.EPOLLIN | select.EPOLLOUT)

    def _receive(self, file: int) -> None:
        try:
            answer = self._sockets[file].recv(_ANSWER_BYTES)
        except OSError:
            answer = b""
        answer = self._pieces.pop(file, b"") + answer if answer else b""
        head = answer.find(b"\r\n\r\n")
        start = answer.find(b"content-length: ", 0, head)
        if not answer or file not in self._number or (head >= 0 and start < 0):
            self._end(file, BROKEN)
            return
        if head < 0 or len(answer) < head + 4 + int(answer[start + 16 : answer.find(b"\r", start)]):
            self._pieces[file] = answer
            return
        number = self._number.pop(file)
        self._status[number] = int(answer[9:12])
        self._ended[number] = perf_counter() - self._begin
        self._free.append(file)

    def _leave(self, now: float) -> None:
        """Disconnect the clients whose patience is over."""
        while self._leavers and self._leavers[0][0] <= now:
            _, file, number = self._leavers.popleft()
            if self._number.get(file) == number:
                self._end(file, LEFT)

    def _end(self, file: int, status: int) -> None:
        """Close a connection; if it has an open request, that request gets `status`."""
        connection = self._sockets.pop(file)
        self._poll.unregister(file)
        connection.close()
        self._pieces.pop(file, None)
        self._unsent.pop(file, None)
        number = self._number.pop(file, None)
        if number is None:
            self._free.remove(file)
        else:
            self._status[number] = status
            self._ended[number] = perf_counter() - self._begin

    def _connect(self, *, wait: bool = True) -> int:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(wait)
        with suppress(BlockingIOError):
            connection.connect((HOST, self._port))
        connection.setblocking(False)
        file = connection.fileno()
        self._sockets[file] = connection
        self._poll.register(file, select.EPOLLIN)
        return file
