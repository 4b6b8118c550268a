"""Clients that try to make the service unusable for others, each in one way.

An attacker is a function of the server's port and of a flag that ends it. Most of these attacks
once stopped the service or took its memory for seconds to minutes, before its limits existed. To
add one, write a function and add its line to `ATTACKS`.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, cycle
from multiprocessing.synchronize import Event
from threading import Thread
from time import sleep

import orjson

from loadtests.connection import (
    Connection,
    RequestFailed,
    delete,
    ended_by_server,
    get,
    post,
    post_bytes,
)
from loadtests.resources import encoding_children
from service.child_server import HOST

Attack = Callable[[int, Event], None]

PAUSE = 0.05  # seconds to wait after a broken connection

EVERYTHING = {"top_k": 1_000, "depth": 2_000, "explain": True, "memorization": 1.0}
FAT_LABELS = 500
METADATA = {f"entry {number}": "x" * 980 for number in range(16)}  # as much as a label may have


def costly_queries(port: int, ended: Event) -> None:
    """Four clients send sixteen queries per request, with every option that costs time."""
    requests = [
        post("/predict", {**EVERYTHING, "queries": [f"{word} {number}" for number in range(16)]})
        for word in ("blue", "green", "quick", "strange")
    ]
    repeat(port, ended, requests)


def far_versions(port: int, ended: Event) -> None:
    """Clients that outnumber the connections wait for a version that does not come."""
    newest = orjson.loads(Connection(port).ask(get("/info"))[1])["version"]
    body = {"queries": ["patience"], "min_version": newest + 5_000, "deadline_ms": 60_000}
    hold_open(port, ended, [post("/predict", body)] * 1_200)


def endless_headers(port: int, ended: Event) -> None:
    """Twenty clients send headers that never end, one of them a single long value."""
    head = f"GET /predict HTTP/1.1\r\nHost: {HOST}\r\n".encode()
    fields = b"".join(b"X-Field-%d: %s\r\n" % (number, b"x" * 1_000) for number in range(256))
    stream(port, ended, [(head, fields)] * 19 + [(head + b"X-Long: ", b"x" * 262_144)])


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
    queries = [f"green {number}" for number in range(16)]
    request = post("/predict", {**EVERYTHING, "queries": queries, "deadline_ms": 60_000})
    hold_open(port, ended, [request * 4] * 12)


def wrong_bodies(port: int, ended: Event) -> None:
    """Sixteen clients repeatedly send bodies of 4 MB with 300,000 unknown fields."""
    fields = ",".join(f'"f{number}":0' for number in range(300_000)).encode()
    repeat(port, ended, [post_bytes("/predict", b"{%s}" % fields)] * 16)


def blank_lines(port: int, ended: Event) -> None:
    """Two clients stream blank lines."""
    head = (
        f"POST /labels HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    piece = b"40000\r\n%s\r\n" % (b"\n" * 0x40000)
    stream(port, ended, [(head, piece)] * 2)


def unknown_labels(port: int, ended: Event) -> None:
    """Two clients post a thousand clicks, each of a hundred unknown labels."""
    labels = [f"u{number}" for number in range(100)]
    instances = [{"query": f"q{number}", "labels": labels} for number in range(1_000)]
    repeat(port, ended, [post("/instances", {"instances": instances})] * 2)


def stopped_children(port: int, ended: Event) -> None:
    """Post labels in bulk and keep stopping the child processes that encode them (SIGSTOP)."""
    labels = [{"text": f"stopped {number}"} for number in range(100)]

    def stop_children() -> None:
        while not ended.wait(0.5):
            # The service is another child of this process's parent.
            for child in encoding_children(os.getppid()):
                with suppress(OSError):
                    os.kill(child, signal.SIGSTOP)

    posts = [post("/labels", {"labels": labels})]
    together([stop_children, partial(repeat, port, ended, posts)])


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
    together([post_labels, partial(repeat, port, ended, [asked] * 4)])


def large_bodies(port: int, ended: Event) -> None:
    """Six clients send valid bodies of the largest allowed size."""
    words = " ".join(["many words"] * 180)
    asked = {"queries": [f"{words} {number}" for number in range(256)], "top_k": 1_000}
    labels = [
        {"text": f"large {number}", "queries": [f"{number} words {n} of it" for n in range(100)]}
        for number in range(1_000)
    ]
    repeat(port, ended, [post("/predict", asked)] * 4 + [post("/labels", {"labels": labels})] * 2)


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
    together([write, end, partial(repeat, port, ended, [label, *[asked] * 4])])


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


def together(works: Iterable[Callable[[], None]]) -> None:
    """Run each function in a thread, and wait for all."""
    threads = [Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def repeat(
    port: int, ended: Event, requests: Sequence[bytes], *, clients: int | None = None
) -> None:
    """Clients send their shares of the requests again and again, and read the answers.

    The answers may be of any kind. By default, there is one client per request.
    """

    def client(own: Sequence[bytes]) -> None:
        turns = cycle(own)
        while not ended.is_set():
            try:
                connection = Connection(port)
                while not ended.is_set():
                    connection.ask(next(turns))
            except (OSError, RequestFailed, ValueError):
                sleep(PAUSE)

    number = len(requests) if clients is None else clients
    together(partial(client, requests[place::number]) for place in range(number))


def stream(port: int, ended: Event, requests: Sequence[tuple[bytes, bytes]]) -> None:
    """One client per request sends its begin, and then its piece without end.

    It starts again when the service ends the connection.
    """

    def client(begin: bytes, piece: bytes) -> None:
        while not ended.is_set():
            try:
                connection = connected(port)
                connection.sendall(begin)
                while not ended.is_set():
                    connection.sendall(piece)
            except OSError:
                sleep(PAUSE)

    together(partial(client, *request) for request in requests)


def hold_open(port: int, ended: Event, requests: Sequence[bytes]) -> None:
    """Open a connection for each request, send it and read nothing.

    Connections that the service ends are opened again.
    """
    connections: list[socket.socket | None] = [None] * len(requests)
    while True:
        for place, request in enumerate(requests):
            connection = connections[place]
            if connection is not None and ended_by_server(connection):
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


def connected(port: int, *, small_buffer: bool = False) -> socket.socket:
    connection = socket.socket()
    if small_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(30.0)
    connection.connect((HOST, port))
    return connection
