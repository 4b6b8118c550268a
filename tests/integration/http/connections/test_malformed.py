"""Bytes that are no request, over real sockets: an answer of the documented shape, and an end."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.http.server import HttpService, http_service, read_answer
from tests.support.waiting import wait_for

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def service(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[HttpService]:
    with http_service(tiny_bundle_folder, tmp_path / "state") as service:
        yield service


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_a_problem(service: HttpService, sent: bytes) -> None:
    with closing(service.connect()) as connection:
        connection.sendall(sent)
        status, headers, problem = read_answer(connection)
        assert connection.recv(1) == b""
    assert (status, headers["connection"]) == (400, "close")
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-request-id"]
    assert problem["type"] == "urn:keymatch:problem:malformed-http"
    wait_for(lambda: service.metric('keymatch_requests_total{route="unmatched",status="400"} 1.0'))
    assert not service.metric('keymatch_rejected_total{reason="refused"} 0.0')


def test_garbage_after_a_request_takes_nothing_from_its_answer(service: HttpService) -> None:
    with closing(service.connect()) as connection:
        connection.sendall(LIVE + b"GARBAGE\r\n\r\n")
        status, _, answer = read_answer(connection)
        assert (status, answer) == (200, {"status": "live"})
        assert connection.recv(1) == b""
