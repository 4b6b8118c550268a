"""Bytes that are no HTTP request get a documented error, and the connection is closed."""

from contextlib import closing

import pytest

from tests.support.http.problems import assert_problem
from tests.support.http.server import HttpService, read_answer, read_problem
from tests.support.waiting import wait_for

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_what_is_not_http_is_a_problem(service: HttpService) -> None:
    malformed = (
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    )
    for count, sent in enumerate(malformed, 1):
        with closing(service.connect()) as connection:
            connection.sendall(sent)
            problem = read_problem(connection, 400)
            assert connection.recv(1) == b""
        assert problem["type"] == "urn:keymatch:problem:malformed-http"
        line = f'keymatch_requests_total{{route="unmatched",status="400"}} {count}.0'
        wait_for(lambda line=line: service.metric(line))
    assert not service.metric('keymatch_rejected_total{reason="refused"} 0.0')


def test_garbage_after_a_request_takes_nothing_from_its_answer(service: HttpService) -> None:
    with closing(service.connect()) as connection:
        connection.sendall(LIVE + b"GARBAGE\r\n\r\n")
        status, _, answer = read_answer(connection)
        assert (status, answer) == (200, {"status": "live"})
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    "hosts",
    [b"", *(b"Host: localhost\r\nHost: %b\r\n" % second for second in (b"localhost", b"a"))],
)
@pytest.mark.parametrize("path", [b"/health/live", b"/labels/tent", b"/nowhere"])
def test_http_1_1_has_one_host(service: HttpService, path: bytes, hosts: bytes) -> None:
    with closing(service.connect()) as connection:
        connection.sendall(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, hosts))
        status, _, problem = read_answer(connection)
    assert (status, problem["title"]) == (400, "Malformed HTTP")


def test_http_1_0_needs_no_host(service: HttpService) -> None:
    with closing(service.connect()) as connection:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert read_answer(connection)[0] == 200


@pytest.mark.parametrize("bad", ["%FF", "a%C3", "%ED%A0%80", "%C0%AF", "%FF%FE"])
def test_a_url_that_is_not_utf8_names_nothing(service: HttpService, bad: str) -> None:
    replaced = {"id": "\ufffd", "text": "a label whose id is the replacement character"}
    assert service.client.post("/labels", json={"labels": [replaced]}).status_code == 200
    for method, path in (
        ("GET", f"/labels/{bad}"),
        ("DELETE", f"/labels/{bad}"),
        ("PATCH", f"/labels/{bad}"),
        ("GET", f"/items/{bad}"),
        ("GET", f"/labels?after={bad}"),
        ("GET", f"/items?after={bad}"),
    ):
        answer = service.client.request(method, path, json={} if method == "PATCH" else None)
        where = "query" if "?" in path else "path"
        assert where in assert_problem(answer, 422, field=where)["detail"]
    assert service.client.get("/labels/%EF%BF%BD").json()["text"] == replaced["text"]


def test_a_query_that_is_not_ascii_is_refused(service: HttpService) -> None:
    with closing(service.connect()) as connection:
        connection.sendall("GET /labels?after=ä HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert read_answer(connection)[0] in (400, 422)
