"""Clients that try to take the service away from others, each in one way.

An attacker is a function of the server's port and of a flag that ends it. Most of them ran against
the service before it was bounded, and each stopped it, or took its memory, for seconds to minutes.
Adding one is a function and its line in `ATTACKS`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from multiprocessing.synchronize import Event

import orjson

from loadtests.attacks.encoding_children import encoding_children
from loadtests.attacks.hostile_clients import connected, hold_open, raw, repeat, stream, together
from loadtests.clients.connection import Connection, RequestFailed, delete, get, post
from training.experiments.service_process import HOST

Attack = Callable[[int, Event], None]

EVERYTHING = {"top_k": 1_000, "depth": 2_000, "explain": True, "memorization": 1.0}
FAT_LABELS = 500
METADATA = {f"entry {number}": "x" * 980 for number in range(16)}  # as much as a label may have


def costly_queries(port: int, ended: Event) -> None:
    """Four clients ask for all that sixteen queries can be asked for."""
    requests = [
        post("/predict", {**EVERYTHING, "queries": [f"{word} {number}" for number in range(16)]})
        for word in ("blue", "green", "quick", "strange")
    ]
    together([lambda request=request: repeat(port, request, ended) for request in requests])


def far_versions(port: int, ended: Event) -> None:
    """More clients than there are connections wait for a version that does not come."""
    newest = orjson.loads(Connection(port).ask(get("/info"))[1])["version"]
    body = {"queries": ["patience"], "min_version": newest + 5_000, "deadline_ms": 60_000}
    hold_open(port, ended, [post("/predict", body)] * 1_200)


def endless_headers(port: int, ended: Event) -> None:
    """Twenty clients send headers without end, one of them a single long value."""
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
    """Five hundred clients send a byte of their header each second."""
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
    """Twelve hundred clients connect and say nothing."""
    hold_open(port, ended, [b""] * 1_200)


def unread_answers(port: int, ended: Event) -> None:
    """Twelve clients ask for large answers, one after the other, and read none."""
    body = {"top_k": 1_000, "depth": 2_000, "explain": True, "deadline_ms": 60_000}
    request = post("/predict", {**body, "queries": [f"green {n}" for n in range(16)]})
    hold_open(port, ended, [request * 4] * 12)


def wrong_bodies(port: int, ended: Event) -> None:
    """Sixteen clients send bodies of 4 MB with 300,000 unknown fields, again and again."""
    fields = ",".join(f'"f{number}":0' for number in range(300_000)).encode()
    together([lambda: repeat(port, raw("/predict", b"{%s}" % fields), ended)] * 16)


def blank_lines(port: int, ended: Event) -> None:
    """Two clients stream blank lines."""
    head = (
        f"POST /labels HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    piece = b"40000\r\n%s\r\n" % (b"\n" * 0x40000)
    together([lambda: stream(port, ended, head, piece)] * 2)


def unknown_labels(port: int, ended: Event) -> None:
    """Two clients post a thousand clicks of a hundred unknown labels each."""
    labels = [f"u{number}" for number in range(100)]
    instances = [{"query": f"q{number}", "labels": labels} for number in range(1_000)]
    together([lambda: repeat(port, post("/instances", {"instances": instances}), ended)] * 2)


def stopped_children(port: int, ended: Event) -> None:
    """Labels are posted in bulk while the encoding children are stopped again and again."""
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
    """Labels of all the metadata that is allowed are posted, and asked for with explanations."""

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
    """Six clients send valid bodies that are as large as they may be."""
    words = " ".join(["many words"] * 180)
    asked = {"queries": [f"{words} {number}" for number in range(256)], "top_k": 1_000}
    labels = [
        {"text": f"large {number}", "queries": [f"{number} words {n} of it" for n in range(100)]}
        for number in range(1_000)
    ]
    requests = [*[post("/predict", asked)] * 4, *[post("/labels", {"labels": labels})] * 2]
    together([lambda request=request: repeat(port, request, ended) for request in requests])


def snapshots(port: int, ended: Event) -> None:
    """Snapshots are written one after the other, beside four clients and new labels."""
    name = f"attack-{os.getpid()}"
    numbers = count()

    def write() -> None:
        while not ended.is_set():
            snapshot = post("/admin/snapshot", {"bundle": f"{name}-{next(numbers)}"})
            with suppress(OSError, RequestFailed):  # it takes longer than a client waits
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
