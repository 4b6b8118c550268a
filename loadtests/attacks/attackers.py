"""Clients that try to take the service away from others, each in one way.

An attacker is a function of the server's port and of a flag that ends it. All of them ran against
the service before it was bounded, and each stopped it, or took its memory, for seconds to minutes.
Adding one is a function and its line in `ATTACKS`.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread
from time import sleep

import orjson

from loadtests.clients.connection import Connection, RequestFailed, get, post
from training.experiments.service_process import HOST

Attack = Callable[[int, Event], None]

CHILD = b"service.core.encoding.child"
PAUSE = 0.05


def costly_queries(port: int, ended: Event) -> None:
    """Four clients ask for all that sixteen queries can be asked for."""
    body = {"top_k": 1_000, "depth": 2_000, "explain": True, "memorization": 1.0}
    requests = [
        post("/predict", {**body, "queries": [f"{word} {number}" for number in range(16)]})
        for word in ("blue", "green", "quick", "strange")
    ]
    _together([lambda request=request: _repeat(port, request, ended) for request in requests])


def far_versions(port: int, ended: Event) -> None:
    """More clients than there are connections wait for a version that does not come."""
    newest = orjson.loads(Connection(port).ask(get("/info"))[1])["version"]
    body = {"queries": ["patience"], "min_version": newest + 5_000, "deadline_ms": 60_000}
    _hold_open(port, ended, [post("/predict", body)] * 1_200)


def endless_headers(port: int, ended: Event) -> None:
    """Twenty clients send headers without end, one of them a single long value."""
    head = f"GET /predict HTTP/1.1\r\nHost: {HOST}\r\n".encode()
    fields = b"".join(b"X-Field-%d: %s\r\n" % (number, b"x" * 1_000) for number in range(256))
    pieces = [fields] * 19 + [b"x" * 262_144]
    begins = [head] * 19 + [head + b"X-Long: "]
    _together(
        [
            lambda begin=begin, piece=piece: _stream(port, ended, begin, piece)
            for begin, piece in zip(begins, pieces, strict=True)
        ]
    )


def dribbled_requests(port: int, ended: Event) -> None:
    """Five hundred clients send a byte of their header each second."""
    connections = [_connected(port) for _ in range(500)]
    for byte in b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" * 20:
        if ended.wait(1.0):
            break
        for place, connection in enumerate(connections):
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                connection.close()
                connections[place] = _connected(port)


def idle_connections(port: int, ended: Event) -> None:
    """Twelve hundred clients connect and say nothing."""
    _hold_open(port, ended, [b""] * 1_200)


def unread_answers(port: int, ended: Event) -> None:
    """Twelve clients ask for large answers, one after the other, and read none."""
    body = {"top_k": 1_000, "depth": 2_000, "explain": True, "deadline_ms": 60_000}
    request = post("/predict", {**body, "queries": [f"green {n}" for n in range(16)]})
    _hold_open(port, ended, [request * 4] * 12)


def wrong_bodies(port: int, ended: Event) -> None:
    """Sixteen clients send bodies of 4 MB with 300,000 unknown fields, again and again."""
    fields = ",".join(f'"f{number}":0' for number in range(300_000)).encode()
    _together([lambda: _repeat(port, _raw("/predict", b"{%s}" % fields), ended)] * 16)


def blank_lines(port: int, ended: Event) -> None:
    """Two clients stream blank lines."""
    head = (
        f"POST /labels HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    piece = b"40000\r\n%s\r\n" % (b"\n" * 0x40000)
    _together([lambda: _stream(port, ended, head, piece)] * 2)


def unknown_labels(port: int, ended: Event) -> None:
    """Two clients post a thousand clicks of a hundred unknown labels each."""
    labels = [f"u{number}" for number in range(100)]
    instances = [{"query": f"q{number}", "labels": labels} for number in range(1_000)]
    _together([lambda: _repeat(port, post("/instances", {"instances": instances}), ended)] * 2)


def stopped_children(port: int, ended: Event) -> None:
    """Labels are posted in bulk while the encoding children are stopped again and again."""
    labels = [{"text": f"stopped {number}"} for number in range(100)]

    def stop_children() -> None:
        while not ended.wait(0.5):
            for child in _encoding_children():
                try:
                    os.kill(child, signal.SIGSTOP)
                except OSError:
                    continue

    _together([stop_children, lambda: _repeat(port, post("/labels", {"labels": labels}), ended)])


ATTACKS: Mapping[str, Attack] = {
    "costly queries": costly_queries,
    "far versions": far_versions,
    "endless headers": endless_headers,
    "dribbled requests": dribbled_requests,
    "idle connections": idle_connections,
    "unread answers": unread_answers,
    "wrong bodies": wrong_bodies,
    "blank lines": blank_lines,
    "unknown labels": unknown_labels,
    "stopped children": stopped_children,
}


def _together(works: Sequence[Callable[[], None]]) -> None:
    threads = [Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _repeat(port: int, request: bytes, ended: Event) -> None:
    """Send a request and read its answer, whatever it is, until the end."""
    while not ended.is_set():
        try:
            connection = Connection(port)
            while not ended.is_set():
                connection.ask(request)
        except (OSError, RequestFailed, ValueError):
            sleep(PAUSE)


def _stream(port: int, ended: Event, begin: bytes, piece: bytes) -> None:
    """Begin a request and send pieces of it; again when the service ends the connection."""
    while not ended.is_set():
        try:
            connection = _connected(port)
            connection.sendall(begin)
            while not ended.is_set():
                connection.sendall(piece)
        except OSError:
            sleep(PAUSE)


def _hold_open(port: int, ended: Event, requests: Sequence[bytes]) -> None:
    """Send each request on a connection of its own and read nothing; again where it was ended."""
    connections: list[socket.socket | None] = [None] * len(requests)
    while True:
        for place, request in enumerate(requests):
            connection = connections[place]
            if connection is not None and _ended_by_server(connection):
                connection.close()
                connection = None
            if connection is None:
                try:
                    connection = _connected(port, small_buffer=True)
                    connection.sendall(request)
                except OSError:
                    connection = None
            connections[place] = connection
        if ended.wait(1.0):
            return


def _ended_by_server(connection: socket.socket) -> bool:
    """Whether the service has closed the connection, as far as that shows without reading."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _connected(port: int, *, small_buffer: bool = False) -> socket.socket:
    connection = socket.socket()
    if small_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(30.0)
    connection.connect((HOST, port))
    return connection


def _raw(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _encoding_children() -> list[int]:
    """The encoding children of the service that this process's parent has started."""
    found = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if CHILD in _read(path)
    ]
    return [child for child in found if _parent(_parent(child)) == os.getppid()]


def _parent(process: int) -> int:
    """The parent of a process, 0 where that has ended."""
    status = _read(Path(f"/proc/{process}/stat")).rpartition(b") ")[2].split()
    return int(status[1]) if status else 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""
