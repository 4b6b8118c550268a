"""If a body is refused, the client sees why, and the service soon stops reading."""

import socket
from collections.abc import Callable
from contextlib import closing, suppress
from time import monotonic

import httpx
import pytest

from service.http import label_stream
from service.server import connection
from service.server.connection import SKIPPED_BYTES, SWEEP_SECONDS
from service.settings import Limits
from tests.support.http.server import TENT, HttpService, post, read_answer
from tests.support.waiting import wait_for

LIMIT = 1_000_000
PIECE = bytes(1_000_000)
HUGE = 10**15
LINGER_SECONDS = 1
MOST_BYTES = (LINGER_SECONDS + SWEEP_SECONDS) * 80_000_000  # including the socket buffers


@pytest.fixture
def service(serve: Callable[..., HttpService], monkeypatch: pytest.MonkeyPatch) -> HttpService:
    for module in (connection, label_stream):
        monkeypatch.setattr(module, "LINGER_SECONDS", LINGER_SECONDS)
    return serve(limits=Limits(body_bytes=LIMIT))


def head(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *fields, "", ""]).encode()


LENGTH = f"Content-Length: {HUGE}"
JSON, NDJSON = "Content-Type: application/json", "Content-Type: application/x-ndjson"
REFUSED: dict[str, tuple[int, bytes]] = {
    "too large": (413, head("/predict", JSON, LENGTH)),
    "unknown path": (404, head("/nowhere", JSON, LENGTH)),
    "wrong type": (
        415,
        head("/labels", "Content-Type: text/plain", "Content-Encoding: br", LENGTH),
    ),
    "foreign host": (421, head("/predict", JSON, LENGTH).replace(b"localhost", b"evil.example")),
    "overload": (429, head("/predict", JSON, LENGTH)),
    "no HTTP": (400, b"this is no HTTP\r\n\r\n"),
    "a header": (431, head("/predict", "X: " + "x" * 40_000)),
}


def send_for_ever(connection: socket.socket) -> int:
    """Send as fast as the service reads, until it closes the connection; return the bytes sent."""
    sent, end = 0, monotonic() + 60
    with suppress(OSError):
        while monotonic() < end:
            sent += connection.send(PIECE)
    return sent


@pytest.mark.parametrize("refused", REFUSED)
def test_a_refused_body_is_not_read_for_long(service: HttpService, refused: str) -> None:
    status, sent = REFUSED[refused]
    if status == 429:
        service.overload()
    with closing(service.connect()) as connection:
        connection.sendall(sent)
        assert read_answer(connection)[0] == status
        start = monotonic()
        assert send_for_ever(connection) < MOST_BYTES
        assert monotonic() - start < LINGER_SECONDS + 3
    wait_for(lambda: service.connections <= 1)
    assert service.client.get("/health/live").status_code == 200


def test_a_client_that_sends_everything_first_sees_its_answer(service: HttpService) -> None:
    for size in (LIMIT + 1, 20 * LIMIT):
        answer = httpx.post(
            service.client.base_url.join("/predict"),
            content=iter([bytes(size)]),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 413
        with closing(service.connect()) as connection:
            connection.sendall(head("/predict", JSON, f"Content-Length: {size}") + bytes(size))
            assert read_answer(connection)[0] == 413


def test_a_stream_that_ends_early_is_not_read_for_long(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(service.engine, "write", fail)
    with closing(service.connect()) as connection:
        chunk = b'{"text": "a"}\n' * 1_000
        connection.sendall(head("/labels", NDJSON, LENGTH) + chunk)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert send_for_ever(connection) < 2 * MOST_BYTES


@pytest.mark.parametrize("size", [10, SKIPPED_BYTES // 2])
def test_a_connection_outlives_a_small_refused_body(service: HttpService, size: int) -> None:
    with closing(service.connect()) as connection:
        connection.sendall(head("/nowhere", f"Content-Length: {size}"))
        assert read_answer(connection)[0] == 404
        connection.sendall(bytes(size) + post("/predict", TENT))
        assert read_answer(connection)[0] == 200


def test_a_body_that_was_not_asked_for_is_no_next_request(service: HttpService) -> None:
    """A client that waits for 100-continue and is refused may send its body or not."""
    with closing(service.connect()) as connection:
        connection.sendall(head("/nowhere", "Content-Length: 50", "Expect: 100-continue"))
        assert read_answer(connection)[0] == 404
        assert connection.recv(1) == b""
        connection.sendall(post("/labels", {"labels": [{"text": "smuggled"}]}))
    assert service.client.get("/labels/smuggled").status_code == 404
