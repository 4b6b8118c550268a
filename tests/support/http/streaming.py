"""A client that streams labels over a socket; a test decides when it sends and reads."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPResponse
from typing import Any

import orjson

HEAD = (
    b"POST /labels HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    b"Transfer-Encoding: chunked\r\nX-Request-Id: %b\r\n\r\n"
)


class Streamer:
    """One request whose body is sent in parts."""

    def __init__(self, connection: socket.socket, request_id: str) -> None:
        self._connection = connection
        self._answer: HTTPResponse | None = None
        connection.sendall(HEAD % request_id.encode())

    def send(self, content: bytes) -> None:
        self._connection.sendall(b"%x\r\n" % len(content) + content + b"\r\n")

    def end(self) -> None:
        self._connection.sendall(b"0\r\n\r\n")

    def close(self) -> None:
        """Disconnect; also close the answer, which would keep the connection open."""
        if self._answer is not None:
            self._answer.close()
        self._connection.close()

    @property
    def answer(self) -> HTTPResponse:
        """The answer, once its status and headers have arrived."""
        if self._answer is None:
            self._answer = HTTPResponse(self._connection, method="POST")
            self._answer.begin()
        return self._answer

    def read(self) -> Any:
        """Read the next object of the answer."""
        return orjson.loads(self.answer.readline())

    def rest(self) -> list[Any]:
        """Read all further objects up to the end of the answer."""
        return [orjson.loads(line) for line in self.answer.read().splitlines()]


@contextmanager
def streaming(port: int, *, request_id: str = "stream") -> Iterator[Streamer]:
    """Begin a stream, and disconnect at the end of the block."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
        closing(Streamer(connection, request_id)) as streamer,
    ):
        yield streamer
