"""Bodies over a real socket, plain and in gzip: too large, in chunks, incomplete, or abandoned."""

import gzip
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

import httpx
import orjson
import pytest

from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess, wait_for

LIMIT = 100_000  # set by the fixture `server`
JSON = "application/json"
NDJSON = "application/x-ndjson"
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
TENT = orjson.dumps({"queries": ["tent"]})
MANY = orjson.dumps({"queries": [f"tent {number}" for number in range(256)], "top_k": 100})


@pytest.fixture(autouse=True)
def still_serving(server: ServerProcess) -> Iterator[None]:
    """After each test, the server answers once its queue is empty, and has logged no defect."""
    yield

    def status() -> int:
        return server.client.post("/predict", json={"queries": ["tent"]}).status_code

    wait_for(lambda: status() != 429)
    assert status() == 200
    assert not server.logged("defect")


def post(
    server: ServerProcess, content: bytes | Iterable[bytes], *, coding: str = "", kind: str = JSON
) -> httpx.Response:
    headers = {"content-type": kind} | ({"content-encoding": coding} if coding else {})
    path = "/predict" if kind == JSON else "/labels"
    return server.client.post(path, content=content, headers=headers)


def chunks(body: bytes, size: int = 10_000) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


@pytest.mark.parametrize("size", [len(TENT), 20_000, LIMIT])
def test_a_body_up_to_the_limit_is_answered(server: ServerProcess, size: int) -> None:
    body = TENT.ljust(size)
    plain, *others = [
        post(server, body),
        post(server, chunks(body)),
        post(server, gzip.compress(body), coding="gzip"),
    ]
    assert plain.status_code == 200
    for other in others:
        assert other.json()["results"] == plain.json()["results"]


def test_a_body_beyond_the_limit_is_a_413(server: ServerProcess) -> None:
    assert_problem(post(server, TENT.ljust(LIMIT + 1)), 413)
    assert_problem(post(server, chunks(TENT.ljust(2 * LIMIT))), 413)
    for size in (LIMIT + 1, 100 * LIMIT):
        problem = assert_problem(post(server, gzip.compress(TENT.ljust(size)), coding="gzip"), 413)
        assert problem["detail"] == "the decompressed body has more than the 100000 allowed bytes"
    # Level 0 makes the compressed body larger than the plain one.
    assert_problem(post(server, gzip.compress(bytes(LIMIT), 0), coding="gzip"), 413)
    with server.connect() as connection:  # refused unread
        connection.sendall(HEAD + b"Content-Length: 999999999\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_another_coding_is_a_415_that_names_its_header(server: ServerProcess) -> None:
    for kind in (JSON, NDJSON):
        answer = post(server, b"x", coding="br", kind=kind)
        assert "Content-Encoding" in assert_problem(answer, 415)["detail"]
        assert answer.headers["accept-encoding"] == "gzip"


def test_what_is_no_whole_gzip_is_a_400(server: ServerProcess) -> None:
    whole = gzip.compress(TENT)
    for content in (TENT, whole[:-3], whole + b"x", gzip.compress(b"") * 5_000, b""):
        assert_problem(post(server, content, coding="gzip"), 400)


def test_a_client_that_leaves_early_is_no_defect(server: ServerProcess) -> None:
    """uvicorn reports the disconnect to the last request only, and still answers the first."""
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(MANY) + MANY
    incomplete = HEAD + b"Content-Length: 100\r\n\r\n{"
    for sent, answered in ((incomplete, 0), (request, 0), (request * 3, 1)):
        for _ in range(5):
            with server.connect() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(sent)
                connection.recv(answered)
    with server.connect() as connection:  # half closed
        connection.sendall(incomplete)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass


def stream(server: ServerProcess, *chunks: bytes) -> list[dict[str, Any]]:
    """Send a stream of labels in gzip, and return the lines of the answer."""
    answer = post(server, iter(chunks), coding="gzip", kind=NDJSON)
    assert answer.status_code == 200
    return [orjson.loads(line) for line in answer.content.splitlines()]


def lines(*names: str) -> bytes:
    return b"".join(orjson.dumps({"id": name, "text": f"a {name}"}) + b"\n" for name in names)


def test_a_stream_in_gzip_is_answered_line_by_line(server: ServerProcess) -> None:
    names = [f"label {number}" for number in range(600)]
    whole = gzip.compress(lines(*names))
    for sent in ([whole], chunks(whole, 100)):
        assert [answer["id"] for answer in stream(server, *sent)] == names
    each = [gzip.compress(lines(name)) for name in names[:50]]
    assert [answer["id"] for answer in stream(server, *each)] == names[:50]


def test_a_stream_that_breaks_off_says_where(server: ServerProcess) -> None:
    whole = gzip.compress(lines("first", "second"))
    cut = gzip.compress(lines("first", "second") + b'{"text": "never"}', 0)[:-8]
    broken_off = "the body ends before its gzip does; send it as a whole"
    for content, said in (
        (whole[:-5], broken_off),
        (cut, broken_off),
        (whole + b"no gzip", "the body is not gzip, as its Content-Encoding says"),
    ):
        *answers, end = stream(server, content)
        assert [answer["id"] for answer in answers] == ["first", "second"]
        assert end["stopped_after"] == 2
        assert (end["error"]["status"], end["error"]["detail"]) == (400, said)
    assert server.client.get("/labels/never").status_code == 404


def test_bombs_hold_up_nobody(server: ServerProcess) -> None:
    bomb = gzip.compress(b"\n" * 100_000_000)
    ended = threading.Event()
    slowest = 0.0

    def probe() -> None:
        nonlocal slowest
        with httpx.Client(base_url=server.client.base_url) as client:
            while not ended.is_set():
                start = monotonic()
                assert client.get("/health/live").status_code == 200
                slowest = max(slowest, monotonic() - start)

    probing = threading.Thread(target=probe)
    probing.start()
    try:
        for _ in range(5):
            assert_problem(post(server, bomb, coding="gzip"), 413)
        [answer] = stream(server, bomb, gzip.compress(lines("after")))
    finally:
        ended.set()
        probing.join()
    assert (answer["line"], answer["id"], answer["status"]) == (100_000_001, "after", "created")
    assert slowest < 0.5, "probes waited for a bomb"
