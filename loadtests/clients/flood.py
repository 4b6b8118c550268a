"""A flood: more requests than the server answers, in an open loop, by one thread that costs little.

The client shares its cores with the server, so it sends prepared bytes, looks at nothing but the
status and the length of an answer, and keeps figures in arrays. It wakes at most once a millisecond
and then sends all that is due. Latency counts from the intended start.

The thread of `open_loop.py` sleeps until each start and another one receives: more exact, and with
some thousand requests a second too dear.
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

from training.experiments.service_process import HOST

UNANSWERED, BROKEN, LEFT = 0, 1, 2  # in place of a status: none came, connection lost, client left
_LAST_ANSWER_SECONDS = 5.0
_WAKE_SECONDS = 0.001
_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Flood:
    """What is sent: request number i at `starts[i]` seconds, `requests` again and again.

    Nothing is sent after `until` seconds, if given: with all starts at 0, that is a closed loop.
    All connections are opened before the start; requests that are due while all of them are busy
    wait, and their latency goes on. `idle` further connections stay open and unused. Of `leaving`
    requests (a share from 0 to 1), the client disconnects `patience` seconds after sending them; it
    connects again for its next request, and meanwhile the others are served.
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
    """What became of each request, in the order of their starts.

    `status` is an HTTP status, `UNANSWERED`, `BROKEN` or `LEFT`; `seconds` count from the intended
    start to the answer. `processor` is what the client itself took, `idle_lost` how many of its
    idle connections the server had closed at the end.
    """

    starts: NDArray[np.float64]
    status: NDArray[np.int16]
    seconds: NDArray[np.float64]
    processor: float
    idle_lost: int

    def latencies(self, status: int, *, since: float = 0.0) -> NDArray[np.float64]:
        """Seconds of the answers of one status, of requests due from `since` seconds on."""
        return self.seconds[(self.status == status) & (self.starts >= since)]


def flood(port: int, plan: Flood) -> Fate:
    """Send everything from a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client_process:
        return client_process.submit(flood_in_this_process, port, plan).result()


def flood_in_this_process(port: int, plan: Flood) -> Fate:
    """As `flood`, but from this thread."""
    return _Flooding(port, plan).run()


class _Flooding:
    def __init__(self, port: int, plan: Flood) -> None:
        self._port, self._plan = port, plan
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._idle: deque[int] = deque()  # file numbers; the longest unused first
        self._number: dict[int, int] = {}  # of the unanswered request, by file number
        self._pieces: dict[int, bytes] = {}  # of an answer that has not arrived as a whole
        self._unsent: dict[int, bytes] = {}  # requests that wait for their connection
        self._leavers: deque[tuple[float, int, int]] = deque()  # when, file number, request number
        count = len(plan.starts)
        self._status = np.full(count, UNANSWERED, np.int16)
        self._ended = np.zeros(count)
        draw = np.random.default_rng(0).random(count)
        self._leaves = (draw < plan.leaving).tolist()
        self._sent = 0

    def run(self) -> Fate:
        plan = self._plan
        unused = [socket.create_connection((HOST, self._port)) for _ in range(plan.idle)]
        self._idle.extend(self._connect() for _ in range(plan.connections))
        starts, count = plan.starts.tolist(), len(plan.starts)
        processor = process_time()
        self._begin = perf_counter()
        last = (plan.until or starts[-1]) + _LAST_ANSWER_SECONDS
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
        processor = process_time() - processor
        lost = sum(_closed(connection) for connection in unused)
        for connection in (*unused, *self._sockets.values()):
            connection.close()
        self._poll.close()
        return Fate(
            starts=plan.starts[: self._sent],
            status=self._status[: self._sent],
            seconds=(self._ended - plan.starts)[: self._sent],
            processor=processor,
            idle_lost=lost,
        )

    def _send(self, now: float) -> bool:
        """Send the next request; False if there is no connection for it."""
        if self._idle:
            file = self._idle.popleft()
        elif len(self._sockets) < self._plan.connections:  # clients that left come back
            file = self._connect(wait=False)
        else:
            return False
        number, requests = self._sent, self._plan.requests
        self._sent += 1
        self._number[file] = number
        if self._leaves[number]:
            self._leavers.append((now + self._plan.patience, file, number))
        self._write(file, requests[number % len(requests)])
        return True

    def _write(self, file: int, request: bytes) -> None:
        try:
            self._sockets[file].send(request)
        except BlockingIOError:  # the connection is not there yet
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
        """Disconnect those that have waited as long as they wanted to."""
        while self._leavers and self._leavers[0][0] <= now:
            _, file, number = self._leavers.popleft()
            if self._number.get(file) == number:
                self._end(file, LEFT)

    def _end(self, file: int, status: int) -> None:
        """Close a connection; its request, if it has one, ends with `status`."""
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


def _closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection on which nothing was sent."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
