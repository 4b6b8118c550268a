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

    def send_until_blocked(self, content: bytes, *, most: int) -> int:
        """Send `content` repeatedly until the server takes no more; return the bytes sent."""
        self._connection.settimeout(1)
        sent = 0
        chunk = b"%x\r\n" % len(content) + content + b"\r\n"
        while sent < most:
            try:
                sent += self._connection.send(chunk[sent % len(chunk) :])
            except TimeoutError:
                break
        return sent

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
def streaming(
    port: int, *, request_id: str = "stream", receive_bytes: int | None = None
) -> Iterator[Streamer]:
    """Begin a stream, and disconnect at the end of the block.

    `receive_bytes` is the size of the socket's receive buffer, for clients that do not read.
    """
    with socket.socket() as connection:
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", port))
        with closing(Streamer(connection, request_id)) as streamer:
            yield streamer
