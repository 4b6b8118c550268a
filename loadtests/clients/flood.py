"""A flood of requests in an open or a closed loop, by one thread that takes little CPU time.

The client shares its cores with the server. It sends prepared bytes, reads only the status and the
length of an answer, and keeps figures in arrays. It wakes at most once per millisecond and then
sends all requests that are due. Latency counts from the intended start.

`open_loop.py` is more exact: one thread sleeps until each start, and another one receives. With
some thousand requests per second it would take too much CPU time.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from time import perf_counter, process_time

import numpy as np
from numpy.typing import NDArray

from loadtests.clients.connection import RequestFailed, ended_by_server
from service.child_server import HOST

UNANSWERED, BROKEN, LEFT = 0, 1, 2  # used instead of an HTTP status
_LAST_ANSWER_SECONDS, _LAST_IN_CLOSED_LOOP = 5.0, 30.0
_WAKE_SECONDS = 0.001
_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Flood:
    """A plan: request number i starts at `starts[i]` seconds; `requests` are repeated in order.

    Nothing is sent after `until` seconds, if given. With all starts at 0 this is a closed loop:
    each connection sends its next request as soon as it is answered. All connections are opened
    before the start. Requests that are due while all connections are busy wait, and their latency
    counts. `idle` additional connections stay open and unused. `leaving` (0 to 1) is the share of
    requests after which the client disconnects, `patience` seconds after sending. It reconnects for
    its next request.
    """

    requests: Sequence[bytes]
    starts: NDArray[np.float64]
    until: float | None = None
    connections: int = 500
    idle: int = 0
    leaving: float = 0.0
    patience: float = 0.02


@dataclass(frozen=True, kw_only=True)
class Fate:
    """The result of each request, in the order of their starts.

    `status` is an HTTP status, `UNANSWERED`, `BROKEN` or `LEFT`. `seconds` count from the intended
    start (in a closed loop: from sending) to the answer. `cpu` is the client's CPU time,
    `idle_lost` the number of its idle connections that the server had closed at the end.
    """

    starts: NDArray[np.float64]
    status: NDArray[np.int16]
    seconds: NDArray[np.float64]
    cpu: float
    idle_lost: int


def flood(port: int, plan: Flood) -> Fate:
    """Send everything from a separate process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client_process:
        return client_process.submit(flood_in_this_process, port, plan).result()


def flood_in_this_process(port: int, plan: Flood) -> Fate:
    """Like `flood`, but send everything from this thread."""
    return _Flooding(port, plan).run()


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Seconds of each answer in a closed loop that took `seconds`; `refused` requests got 429."""

    seconds: float
    latencies: list[float]
    refused: int

    @property
    def per_second(self) -> float:
        """Answered requests per second."""
        return len(self.latencies) / self.seconds


def saturate(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float
) -> Throughput:
    """Send each request once, in a closed loop that ends after `seconds` or with the last request.

    The latencies leave out the waiting that an open loop shows. Raises `RequestFailed` for an
    answer that is neither 200 nor 429, and for a request without an answer.
    """
    starts = np.zeros(len(requests))
    plan = Flood(requests=requests, starts=starts, until=seconds, connections=connections)
    fate = flood(port, plan)
    failed = fate.status[~np.isin(fate.status, (200, 429))]
    if len(failed):
        raise RequestFailed(f"status {failed[0]}, expected 200 ({len(failed)} requests)")
    return Throughput(
        seconds=float(np.max(fate.starts + fate.seconds)),
        latencies=fate.seconds[fate.status == 200].tolist(),
        refused=int(np.count_nonzero(fate.status == 429)),
    )


class _Flooding:
    def __init__(self, port: int, plan: Flood) -> None:
        self._port, self._plan = port, plan
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._idle: deque[int] = deque()  # file descriptors, the longest unused first
        self._number: dict[int, int] = {}  # descriptor -> number of its unanswered request
        self._pieces: dict[int, bytes] = {}  # descriptor -> the arrived part of its answer
        self._unsent: dict[int, bytes] = {}  # descriptor -> request, until it is connected
        self._leavers: deque[tuple[float, int, int]] = deque()  # when, descriptor, request number
        count = len(plan.starts)
        self._status = np.full(count, UNANSWERED, np.int16)
        self._starts, self._ended = plan.starts.copy(), np.zeros(count)
        draw = np.random.default_rng(0).random(count)
        self._leaves = (draw < plan.leaving).tolist()
        self._sent = 0

    def run(self) -> Fate:
        plan = self._plan
        unused = [socket.create_connection((HOST, self._port)) for _ in range(plan.idle)]
        self._idle.extend(self._connect() for _ in range(plan.connections))
        starts, count = plan.starts.tolist(), len(plan.starts)
        cpu = process_time()
        self._begin = perf_counter()
        last = starts[-1] + _LAST_ANSWER_SECONDS
        if plan.until is not None:
            last = plan.until + _LAST_IN_CLOSED_LOOP
        while (now := perf_counter() - self._begin) < last:
            if plan.until is not None and now > plan.until:
                count = self._sent
            while self._sent < count and starts[self._sent] <= now and self._send(now):
                pass
            if self._sent == count and not self._number:
                break
            self._leave(now)
            for file, event in self._poll.poll(_WAKE_SECONDS):
                if event & select.EPOLLOUT and file in self._unsent:
                    self._poll.modify(file, select.EPOLLIN)
                    self._write(file, self._unsent.pop(file))
                else:
                    self._receive(file)
        cpu = process_time() - cpu
        lost = sum(ended_by_server(connection) for connection in unused)
        for connection in (*unused, *self._sockets.values()):
            connection.close()
        self._poll.close()
        return Fate(
            starts=self._starts[: self._sent],
            status=self._status[: self._sent],
            seconds=(self._ended - self._starts)[: self._sent],
            cpu=cpu,
            idle_lost=lost,
        )

    def _send(self, now: float) -> bool:
        """Send the next request; return False if no connection is free."""
        if self._idle:
            file = self._idle.popleft()
        elif len(self._sockets) < self._plan.connections:  # clients that left reconnect
            file = self._connect(wait=False)
        else:
            return False
        number, requests = self._sent, self._plan.requests
        self._sent += 1
        self._number[file] = number
        if self._plan.until is not None:
            self._starts[number] = now
        if self._leaves[number]:
            self._leavers.append((now + self._plan.patience, file, number))
        self._write(file, requests[number % len(requests)])
        return True

    def _write(self, file: int, request: bytes) -> None:
        try:
            self._sockets[file].send(request)
        except BlockingIOError:  # the connection is still being opened
            self._unsent[file] = request
            self._poll.modify(file, select.EPOLLIN | select.EPOLLOUT)
        except OSError:
            self._end(file, BROKEN)

    def _receive(self, file: int) -> None:
        try:
            answer = self._sockets[file].recv(_ANSWER_BYTES)
        except OSError:
            answer = b""
        if not answer:
            self._end(file, BROKEN)
            return
        if file in self._pieces:
            answer = self._pieces.pop(file) + answer
        head = answer.find(b"\r\n\r\n")
        start = answer.find(b"content-length: ", 0, head)
        if head < 0 or len(answer) < head + 4 + int(answer[start + 16 : answer.find(b"\r", start)]):
            self._pieces[file] = answer
            return
        number = self._number.pop(file)
        self._status[number] = int(answer[9:12])
        self._ended[number] = perf_counter() - self._begin
        self._idle.append(file)

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
            self._idle.remove(file)
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
