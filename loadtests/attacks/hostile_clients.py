"""How an attacker's clients behave: they repeat, never end, hold on, or never read."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from threading import Thread
from time import sleep

from loadtests.clients.connection import Connection, RequestFailed
from training.experiments.service_process import HOST

PAUSE = 0.05


def together(works: Sequence[Callable[[], None]]) -> None:
    threads = [Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def repeat(port: int, request: bytes, ended: Event) -> None:
    """Send a request and read its answer, whatever it is, until the end."""
    while not ended.is_set():
        try:
            connection = Connection(port)
            while not ended.is_set():
                connection.ask(request)
        except (OSError, RequestFailed, ValueError):
            sleep(PAUSE)


def stream(port: int, ended: Event, begin: bytes, piece: bytes) -> None:
    """Begin a request and send pieces of it; again when the service ends the connection."""
    while not ended.is_set():
        try:
            connection = connected(port)
            connection.sendall(begin)
            while not ended.is_set():
                connection.sendall(piece)
        except OSError:
            sleep(PAUSE)


def hold_open(port: int, ended: Event, requests: Sequence[bytes]) -> None:
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
                    connection = connected(port, small_buffer=True)
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


def connected(port: int, *, small_buffer: bool = False) -> socket.socket:
    connection = socket.socket()
    if small_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(30.0)
    connection.connect((HOST, port))
    return connection


def raw(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
