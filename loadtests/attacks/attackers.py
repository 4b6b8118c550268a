"""Clients that try to make the service unusable for others, each in one way.

An attacker is a function of the server's port and of a flag that ends it. Most of these attacks
once stopped the service or took its memory for seconds to minutes, before its limits existed. To
add one, write a function and add its line to `ATTACKS`.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread
from time import sleep

import orjson

from loadtests.clients.connection import Connection, RequestFailed, delete, get, post, post_bytes
from loadtests.resources import process_tree
from service.child_server import HOST

Attack = Callable[[int, Event], None]

PAUSE = 0.05  # seconds to wait after a broken connection
CHILD = b"service.core.encoding.child"

EVERYTHING = {"top_k": 1_000, "depth": 2_000, "explain": True, "memorization": 1.0}
FAT_LABELS = 500
METADATA = {f"entry {number}": "x" * 980 for number in range(16)}  # as much as a label may have


def costly_queries(port: int, ended: Event) -> None:
    """Four clients send sixteen queries per request, with every option that costs time."""
    requests = [
        post("/predict", {**EVERYTHING, "queries": [f"{word} {number}" for number in range(16)]})
        for word in ("blue", "green", "quick", "strange")
    ]
    together([lambda request=request: repeat(port, request, ended) for request in requests])


def far_versions(port: int, ended: Event) -> None:
    """Clients that outnumber the connections wait for a version that does not come."""
    newest = orjson.loads(Connection(port).ask(get("/info"))[1])["version"]
    body = {"queries": ["patience"], "min_version": newest + 5_000, "deadline_ms": 60_000}
    hold_open(port, ended, [post("/predict", body)] * 1_200)


def endless_headers(port: int, ended: Event) -> None:
    """Twenty clients send headers that never end, one of them a single long value."""
    head = f"GET /predict HTTP/1.1\r\nHost: {HOST}\r\n".encode()
    fields = b"".join(b"X-Field-%d: %s\r\n" % (number, b"x" * 1_000) for number in range(256))
    pieces = [fields] * 19 + [b"x" * 262_144]
    begins = [head] * 19 + [head + b"X-Long: "]
    together(
        [
            lambda begin=begin, piece=piece: stream(port, ended, begin, piece)
            for begin, piece in zip(begins, pieces, strict=True)
        ]
    )


def dribbled_requests(port: int, ended: Event) -> None:
    """Five hundred clients send one byte of their header per second."""
    connections = [connected(port) for _ in range(500)]
    for byte in b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" * 20:
        if ended.wait(1.0):
            break
        for place, connection in enumerate(connections):
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                connection.close()
                connections[place] = connected(port)


def idle_connections(port: int, ended: Event) -> None:
    """Twelve hundred clients connect and send nothing."""
    hold_open(port, ended, [b""] * 1_200)


def unread_answers(port: int, ended: Event) -> None:
    """Twelve clients request large answers, one after the other, and read none."""
    body = {"top_k": 1_000, "depth": 2_000, "explain": True, "deadline_ms": 60_000}
    request = post("/predict", {**body, "queries": [f"green {n}" for n in range(16)]})
    hold_open(port, ended, [request * 4] * 12)


def wrong_bodies(port: int, ended: Event) -> None:
    """Sixteen clients repeatedly send bodies of 4 MB with 300,000 unknown fields."""
    fields = ",".join(f'"f{number}":0' for number in range(300_000)).encode()
    together([lambda: repeat(port, post_bytes("/predict", b"{%s}" % fields), ended)] * 16)


def blank_lines(port: int, ended: Event) -> None:
    """Two clients stream blank lines."""
    head = (
        f"POST /labels HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    piece = b"40000\r\n%s\r\n" % (b"\n" * 0x40000)
    together([lambda: stream(port, ended, head, piece)] * 2)


def unknown_labels(port: int, ended: Event) -> None:
    """Two clients post a thousand clicks, each of a hundred unknown labels."""
    labels = [f"u{number}" for number in range(100)]
    instances = [{"query": f"q{number}", "labels": labels} for number in range(1_000)]
    together([lambda: repeat(port, post("/instances", {"instances": instances}), ended)] * 2)


def stopped_children(port: int, ended: Event) -> None:
    """Post labels in bulk and keep stopping the child processes that encode them (SIGSTOP)."""
    labels = [{"text": f"stopped {number}"} for number in range(100)]

    def stop_children() -> None:
        while not ended.wait(0.5):
            for child in encoding_children():
                try:
                    os.kill(child, signal.SIGSTOP)
                except OSError:
                    continue

    together([stop_children, lambda: repeat(port, post("/labels", {"labels": labels}), ended)])


def fat_labels(port: int, ended: Event) -> None:
    """Post labels with as much metadata as allowed, and request them with explanations."""

    def post_labels() -> None:
        with suppress(OSError, RequestFailed):
            connection = Connection(port)
            for start in range(0, FAT_LABELS, 20):
                labels = [
                    {"id": f"fat {number}", "text": f"fat label {number}", "metadata": METADATA}
                    for number in range(start, start + 20)
                ]
                if not ended.is_set():
                    connection.ask(post("/labels", {"labels": labels}))

    asked = post("/predict", {**EVERYTHING, "queries": [f"fat label {n}" for n in range(16)]})
    together([post_labels, *[lambda: repeat(port, asked, ended)] * 4])


def large_bodies(port: int, ended: Event) -> None:
    """Six clients send valid bodies of the largest allowed size."""
    words = " ".join(["many words"] * 180)
    asked = {"queries": [f"{words} {number}" for number in range(256)], "top_k": 1_000}
    labels = [
        {"text": f"large {number}", "queries": [f"{number} words {n} of it" for n in range(100)]}
        for number in range(1_000)
    ]
    requests = [*[post("/predict", asked)] * 4, *[post("/labels", {"labels": labels})] * 2]
    together([lambda request=request: repeat(port, request, ended) for request in requests])


def snapshots(port: int, ended: Event) -> None:
    """Write snapshots one after the other while four clients predict and labels are posted."""
    name = f"attack-{os.getpid()}"
    numbers = count()

    def write() -> None:
        while not ended.is_set():
            snapshot = post("/admin/snapshot", {"bundle": f"{name}-{next(numbers)}"})
            with suppress(OSError, RequestFailed):  # a snapshot takes longer than the timeout
                Connection(port).ask(snapshot)

    def end() -> None:
        ended.wait()
        Connection(port).ask(delete("/admin/snapshot"))

    asked = post("/predict", {"queries": ["blue"], "top_k": 100})
    label = post("/labels", {"labels": [{"text": "in the snapshot"}]})
    works = [
        write,
        end,
        *(lambda one=one: repeat(port, one, ended) for one in [label, *[asked] * 4]),
    ]
    together(works)


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
    "fat labels": fat_labels,
    "large bodies": large_bodies,
    "snapshots": snapshots,
}


# How an attacker's clients behave --------------------------------------------------------------


def together(works: Sequence[Callable[[], None]]) -> None:
    threads = [Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def repeat(port: int, request: bytes, ended: Event) -> None:
    """Send a request and read its answer, whatever it is, again and again until the end."""
    while not ended.is_set():
        try:
            connection = Connection(port)
            while not ended.is_set():
                connection.ask(request)
        except (OSError, RequestFailed, ValueError):
            sleep(PAUSE)


def stream(port: int, ended: Event, begin: bytes, piece: bytes) -> None:
    """Begin a request and send pieces of it; start again when the service ends the connection."""
    while not ended.is_set():
        try:
            connection = connected(port)
            connection.sendall(begin)
            while not ended.is_set():
                connection.sendall(piece)
        except OSError:
            sleep(PAUSE)


def hold_open(port: int, ended: Event, requests: Sequence[bytes]) -> None:
    """Open a connection for each request, send it and read nothing.

    Connections that the service ends are opened again.
    """
    connections: list[socket.socket | None] = [None] * len(requests)
    while True:
        for place, request in enumerate(requests):
            connection = connections[place]
            if connection is not None and _ended_by_server(connection):
                connection.close()
                connection = None
            if connection is None:
                try:
                    connection = connected(port, small_buffer=True)
                    connection.sendall(request)
                except OSError:
                    connection = None
            connections[place] = connection
        if ended.wait(1.0):
            return


def _ended_by_server(connection: socket.socket) -> bool:
    """Check whether the service has closed the connection, without reading from it."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def connected(port: int, *, small_buffer: bool = False) -> socket.socket:
    connection = socket.socket()
    if small_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(30.0)
    connection.connect((HOST, port))
    return connection


def encoding_children() -> list[int]:
    """The encoding children of the service, which is another child of this process's parent."""
    return [child for child in process_tree(os.getppid()) if CHILD in _command_line(child)]


def _command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # the process has ended
        return b""
