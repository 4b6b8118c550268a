"""Gzip bodies over a real socket obey the same limits as plain ones."""

import gzip
import threading
from collections.abc import Iterator
from time import monotonic

import httpx
import orjson
import pytest

from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess

JSON = {"content-type": "application/json", "content-encoding": "gzip"}
NDJSON = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
LIMIT = 100_000  # set by the fixture `server`
TENT = orjson.dumps({"queries": ["tent"]})


@pytest.fixture(autouse=True)
def no_defects(server: ServerProcess) -> Iterator[None]:
    yield
    assert not server.logged("defect")


def post(server: ServerProcess, path: str, content: bytes, **headers: str) -> httpx.Response:
    return server.client.post(path, content=content, headers={**JSON, **headers})


@pytest.mark.parametrize("size", [len(TENT), 20_000, LIMIT])
def test_a_body_in_gzip_is_answered_as_a_plain_one(server: ServerProcess, size: int) -> None:
    answer = post(server, "/predict", gzip.compress(TENT.ljust(size)))
    assert answer.status_code == 200
    plain = server.client.post("/predict", json={"queries": ["tent"]})
    assert answer.json()["results"] == plain.json()["results"]


def test_the_limit_holds_for_the_decompressed_body(server: ServerProcess) -> None:
    for size in (LIMIT + 1, 100 * LIMIT):
        problem = assert_problem(post(server, "/predict", gzip.compress(TENT.ljust(size))), 413)
        assert problem["detail"] == "the decompressed body has more than the 100000 allowed bytes"
    # Level 0 makes the compressed body larger than the plain one.
    assert_problem(post(server, "/predict", gzip.compress(bytes(LIMIT), 0)), 413)


def test_another_coding_is_a_415_that_names_its_header(server: ServerProcess) -> None:
    for kind in ("application/json", "application/x-ndjson"):
        headers = {"content-encoding": "br", "content-type": kind}
        answer = server.client.post("/labels", content=b"x", headers=headers)
        problem = assert_problem(answer, 415)
        assert "Content-Encoding" in problem["detail"]
        assert answer.headers["accept-encoding"] == "gzip"


def test_what_is_no_whole_gzip_is_a_400(server: ServerProcess) -> None:
    whole = gzip.compress(TENT)
    for content in (TENT, whole[:-3], whole + b"x", gzip.compress(b"") * 5_000):
        assert_problem(post(server, "/predict", content), 400)
    assert_problem(post(server, "/predict", b""), 400)  # like an empty plain body


def stream(server: ServerProcess, *chunks: bytes) -> list[dict[str, object]]:
    answer = server.client.post("/labels", content=iter(chunks), headers=NDJSON)
    assert answer.status_code == 200
    return [orjson.loads(line) for line in answer.content.splitlines()]


def lines(*names: str) -> bytes:
    return b"".join(orjson.dumps({"id": name, "text": name}) + b"\n" for name in names)


def test_a_stream_in_gzip_is_answered_line_by_line(server: ServerProcess) -> None:
    names = [f"label {number}" for number in range(600)]
    whole = gzip.compress(lines(*names))
    for chunks in ([whole], [whole[i : i + 100] for i in range(0, len(whole), 100)]):
        assert [answer["id"] for answer in stream(server, *chunks)] == names
    each = [gzip.compress(lines(name)) for name in names[:50]]
    assert [answer["id"] for answer in stream(server, *each)] == names[:50]


def test_a_stream_that_breaks_off_says_where(server: ServerProcess) -> None:
    whole = gzip.compress(lines("first", "second"))
    for content, said in (
        (whole[:-5], "the body ends before its gzip does; send it as a whole"),
        (whole + b"no gzip", "the body is not gzip, as its Content-Encoding says"),
    ):
        *answers, end = stream(server, content)
        assert [answer["id"] for answer in answers] == ["first", "second"]
        assert end["stopped_after"] == 2
        error = end["error"]
        assert isinstance(error, dict)
        assert (error["status"], error["detail"]) == (400, said)


def test_an_incomplete_last_line_of_a_broken_stream_is_not_written(server: ServerProcess) -> None:
    whole = gzip.compress(lines("before") + b'{"text": "never"}', 0)
    *answers, end = stream(server, whole[:-8])
    assert [answer["id"] for answer in answers] == ["before"]
    assert end["stopped_after"] == 1
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
            assert_problem(post(server, "/predict", bomb), 413)
        assert stream(server, bomb, gzip.compress(lines("after"))) == [
            {"line": 100_000_001, "id": "after", "status": "created", "neighbours": [],
             "version": server.client.get("/info").json()["version"]}
        ]  # fmt: skip
    finally:
        ended.set()
        probing.join()
    assert slowest < 0.5, "probes waited for a bomb"
