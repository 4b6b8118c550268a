"""Raw requests on a socket: too large, in chunks, incomplete, or not HTTP."""

import json
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess, wait_for

LIMIT = 100_000  # set by the fixture `server`
JSON = {"content-type": "application/json"}
ANSWERS = (b"200", b"400", b"404", b"405", b"413", b"421", b"422", b"431", b"closed")
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def body_of(size: int) -> bytes:
    """Return the body of a valid request, padded with spaces to `size` bytes."""
    return json.dumps({"queries": ["tent"]}).encode().ljust(size)


def exchange(server: ServerProcess, *sent: bytes) -> bytes:
    """Send raw bytes, close the sending side, and return everything received."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        for part in sent:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65536):
            received += part
    return received


def chunks(body: bytes) -> Iterator[bytes]:
    return (body[start : start + 10_000] for start in range(0, len(body), 10_000))


@pytest.fixture(autouse=True)
def still_serving(server: ServerProcess) -> Iterator[None]:
    """After each test, the server answers once its queue is empty, and has logged no defect."""
    yield

    def status() -> int:
        return server.client.post("/predict", json={"queries": ["tent"]}).status_code

    wait_for(lambda: status() != 429)
    assert status() == 200
    assert not server.logged("defect")


def test_a_body_at_the_limit_is_read(server: ServerProcess) -> None:
    for content in (body_of(LIMIT), chunks(body_of(LIMIT))):
        answer = server.client.post("/predict", content=content, headers=JSON)
        assert answer.status_code == 200


def test_a_body_beyond_the_limit_is_a_413(server: ServerProcess) -> None:
    answer = server.client.post("/predict", content=body_of(LIMIT + 1), headers=JSON)
    assert_problem(answer, 413)


def test_a_chunked_body_is_counted_as_it_comes(server: ServerProcess) -> None:
    answer = server.client.post("/predict", content=chunks(body_of(2 * LIMIT)), headers=JSON)
    assert_problem(answer, 413)


def test_a_body_that_declares_too_many_bytes_is_refused_unread(server: ServerProcess) -> None:
    answer = exchange(server, HEAD + b"Content-Length: 999999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


def test_a_client_that_disconnects_within_its_body_is_no_defect(server: ServerProcess) -> None:
    exchange(server, HEAD + b"Content-Length: 100\r\n\r\n", b'{"queries": ')
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")


def test_a_client_that_does_not_wait_for_its_answer_is_no_defect(server: ServerProcess) -> None:
    body = json.dumps({"queries": [f"tent {number}" for number in range(256)]}).encode()
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def test_a_client_that_leaves_between_two_requests_at_once_is_no_defect(
    server: ServerProcess,
) -> None:
    """uvicorn reports the disconnect to the second request only, and still answers the first."""
    queries = [f"tent {number}" for number in range(256)]
    body = json.dumps({"queries": queries, "top_k": 100}).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(request * 3)
            connection.recv(1)


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET /labels/\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /labels/%ff%00%ed%a0%80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /labels?after=%ff&limit=%31 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://other/info HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /info HTTP/1.1\r\nHost: another.example\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"X: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: \xff\xfe\r\n\r\n",
    ],
)
def test_malformed_requests_are_answered_or_get_a_4xx(server: ServerProcess, sent: bytes) -> None:
    answer = exchange(server, sent)
    status = answer.split(b" ", 2)[1] if answer else b"closed"
    assert status in ANSWERS, answer[:300]
    assert b"Traceback" not in answer
