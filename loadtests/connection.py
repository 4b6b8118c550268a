"""A minimal HTTP client: one blocking keep-alive connection, one request at a time.

A benchmark shares its cores with the server, so the client's own work would count as the server's
latency. This client sends prepared bytes and reads only the status and the content length.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any

import orjson

from service.child_server import HOST

_BLANK_LINE = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length: "
_CHUNKED = b"\r\ntransfer-encoding: chunked"
_LAST_CHUNK = b"\r\n0\r\n\r\n"  # a line of an answer in JSON cannot end so
_TIMEOUT_SECONDS = 30.0


class RequestFailed(RuntimeError):
    """An answer with an unexpected status or without a length, or a broken connection."""


class Connection:
    """One connection to a server on loopback."""

    def __init__(self, port: int) -> None:
        """Connect to `port`; sockets time out after 30 seconds."""
        self._port = port
        self._open()

    def _open(self) -> None:
        self.socket = socket.create_connection((HOST, self._port), timeout=_TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reopen(self) -> None:
        """Close the socket and connect again."""
        self.close()
        self._open()

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and wait for its whole answer, (status, body)."""
        self.socket.sendall(request)
        answer = b""
        while _BLANK_LINE not in answer:
            answer += self._piece()
        head, _, body = answer.partition(_BLANK_LINE)
        head = head.lower() + b"\r"
        status, (_, _, length) = int(head[9:12]), head.partition(_LENGTH)
        if _CHUNKED in head:
            while not body.endswith(_LAST_CHUNK):
                body += self._piece()
            return status, _dechunked(body)
        if not length:
            raise RequestFailed("the answer has no content-length")
        while len(body) < int(length.partition(b"\r")[0]):
            body += self._piece()
        return status, body

    def _piece(self) -> bytes:
        piece = self.socket.recv(262_144)
        if not piece:
            raise RequestFailed("the server closed the connection")
        return piece

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _dechunked(body: bytes) -> bytes:
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        content, body = content + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return content


def ended_by_server(connection: socket.socket) -> bool:
    """Check whether the server has closed a connection, without reading from it."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def one_by_one(port: int, requests: Iterable[bytes]) -> tuple[list[float], list[Any]]:
    """Send requests over one connection; return the seconds and the JSON of each answer.

    Raises `RequestFailed` for any status but 200.
    """
    seconds, answers = [], []
    with Connection(port) as connection:
        for request in requests:
            start = perf_counter()
            answer = connection.ask(request)
            seconds.append(perf_counter() - start)
            answers.append(require(answer))
    return seconds, answers


def post(path: str, document: Any) -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    return post_bytes(path, orjson.dumps(document))


def post_bytes(
    path: str, body: bytes, *, media_type: str = "application/json", method: str = "POST"
) -> bytes:
    """Return the bytes of a POST request, or of another `method`."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {media_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def get(path: str) -> bytes:
    """Return the bytes of a GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


def delete(path: str, document: Any = None) -> bytes:
    """Return the bytes of a DELETE request, with a JSON body if there is a document."""
    if document is not None:
        return post_bytes(path, orjson.dumps(document), method="DELETE")
    return f"DELETE {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


def predict(query: str) -> bytes:
    """Return a /predict request for one query, with the bundle's defaults."""
    return post("/predict", {"queries": [query]})


def with_key(request: bytes, key: str) -> bytes:
    """Return a request with an API key; an empty key changes nothing."""
    header = f"\r\nAuthorization: Bearer {key}\r\n".encode()
    return request.replace(b"\r\n", header, 1) if key else request


def put_label(label_id: str, text: str, queries: Sequence[str] = ()) -> bytes:
    """Return a /labels request for one label."""
    return post("/labels", {"labels": [{"id": label_id, "text": text, "queries": list(queries)}]})


def require(answer: tuple[int, bytes], *, status: int = 200) -> Any:
    """Return the JSON of an answer; raises as `body_of`."""
    return orjson.loads(body_of(answer, status=status))


def body_of(answer: tuple[int, bytes], *, status: int = 200) -> bytes:
    """Return the body of an answer; raises `RequestFailed` if its status is not `status`."""
    if answer[0] != status:
        raise RequestFailed(f"status {answer[0]}, expected {status}: {answer[1][:300]!r}")
    return answer[1]
