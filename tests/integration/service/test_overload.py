"""Overload over real HTTP: refusals are cheap and as documented, and nothing is lost."""

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from service.server.connection import PAUSE_SECONDS
from tests.support.holding import hold
from tests.support.http.problems import assert_problem
from tests.support.http.server import TENT, HttpService, http_service, post, read_answer
from tests.support.waiting import wait_for

GET_READY = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def serve(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[Callable[..., HttpService]]:
    with ExitStack() as running:
        yield lambda **engine: running.enter_context(
            http_service(tiny_bundle_folder, tmp_path / "state", **engine)
        )


@pytest.fixture(scope="module")
def refusing(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpService]:
    """A service that refuses every prediction."""
    with http_service(tiny_bundle_folder, tmp_path_factory.mktemp("state")) as service:
        service.overload()
        yield service


@pytest.fixture
def connection(refusing: HttpService) -> Iterator[socket.socket]:
    with closing(refusing.connect()) as connection:
        yield connection


def test_a_refusal_is_the_documented_problem_and_all_else_answers(serve) -> None:
    refusing = serve()
    refusing.overload()
    answer = refusing.client.post("/predict", json=TENT, headers={"X-Request-Id": "my-id"})
    problem = assert_problem(answer, 429)
    assert problem["detail"] == "the service is overloaded"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-request-id"] == "my-id"
    other = refusing.client.post("/predict", json=TENT)
    assert other.headers["x-request-id"] != "my-id"
    # The connection refuses as the application does.
    early = refusing.client.post("/predict", json=TENT)
    late = refusing.client.post("/predict?early=no", json=TENT)  # with a query string, refused late
    for answer in (early, late):
        answer.headers.pop("x-request-id")
    assert early.json() == late.json()
    names = {"content-type", "content-length", "retry-after"}
    assert {name: early.headers[name] for name in names} == {
        name: late.headers[name] for name in names
    }
    for path in ("/health/ready", "/health/live", "/info", "/labels"):
        assert refusing.client.get(path).status_code == 200
    wait_for(lambda: refusing.metric('keymatch_rejected_total{reason="overloaded"} 4.0'))
    assert refusing.metric('keymatch_requests_total{route="/predict",status="429"} 4.0')


def test_the_connection_stays_open_and_the_body_is_skipped(
    refusing: HttpService, connection: socket.socket
) -> None:
    request = post("/predict", {"queries": ["x" * 1_000] * 100})
    connection.sendall(request[:5_000])
    assert read_answer(connection)[0] == 429  # before the whole body has arrived
    connection.sendall(request[5_000:])
    connection.sendall(GET_READY)
    assert read_answer(connection)[0] == 200
    connection.sendall(post("/labels", {"labels": [{"text": "ice axe"}]}))
    assert read_answer(connection)[0] == 200


def test_pipelined_requests_are_answered_in_order(connection: socket.socket) -> None:
    connection.sendall(GET_READY + post("/predict", TENT) + post("/predict", TENT) + GET_READY)
    content, statuses = b"", list[bytes]()
    while len(statuses) < 4:
        content += connection.recv(4096)
        statuses = re.findall(rb"HTTP/1.1 (\d+)", content)
    assert statuses == [b"200", b"429", b"429", b"200"]


@pytest.mark.parametrize("header", ["Connection: close", "Expect: 100-continue"])
def test_a_connection_that_cannot_go_on_is_closed(connection: socket.socket, header: str) -> None:
    connection.sendall(post("/predict", TENT, header))
    status, headers, _ = read_answer(connection)
    assert (status, headers["connection"]) == (429, "close")
    assert connection.recv(1) == b""


def test_who_asks_again_at_once_is_not_read_for_a_while(connection: socket.socket) -> None:
    start, rounds = time.monotonic(), 20
    for _ in range(rounds):
        connection.sendall(post("/predict", TENT))
        assert read_answer(connection)[0] == 429
    assert time.monotonic() - start > (rounds - 2) / 2 * PAUSE_SECONDS


def test_a_scrape_holds_nobody_up(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    service = serve()
    held = hold(monkeypatch, service.engine._telemetry, "render")
    with closing(service.connect()) as scraping:
        scraping.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held.entered.wait(60)
        assert service.client.post("/predict", json=TENT).status_code == 200
        held.released.set()
        assert scraping.recv(64).startswith(b"HTTP/1.1 200")


def test_clients_that_left_are_not_worked_for(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    service = serve()
    held = hold(monkeypatch, service.engine.loaded.predictor, "encode")
    with closing(service.connect()) as first, closing(service.connect()) as second:
        first.sendall(post("/predict", TENT))
        assert held.entered.wait(60)
        second.sendall(post("/predict", {"queries": ["lamp"], "deadline_ms": 60_000}))
        wait_for(lambda: service.metric("keymatch_queue_depth 2.0"))
        second.close()
        wait_for(lambda: len(service.server.server_state.connections) == 2)
        held.released.set()
        assert read_answer(first)[0] == 200
    wait_for(lambda: service.metric('keymatch_rejected_total{reason="disconnected"} 1.0'))
    assert service.metric('keymatch_requests_total{route="/predict",status="499"} 1.0')
    assert service.metric("keymatch_encode_cache_misses_total 2.0")  # warm-up and first query


def test_who_waits_for_a_version_takes_no_slot(serve) -> None:
    service = serve(queue_queries=1, version_waiters=2)
    with ExitStack() as open_sockets:
        waiting = [open_sockets.enter_context(closing(service.connect())) for _ in range(2)]
        for connection in waiting:
            connection.sendall(post("/predict", {**TENT, "min_version": 1}))
        wait_for(lambda: service.metric("keymatch_version_waiters 2.0"))
        assert service.client.post("/predict", json=TENT).status_code == 200
        third = service.client.post("/predict", json={**TENT, "min_version": 1})
        assert_problem(third, 429)
        service.client.post("/labels", json={"labels": [{"text": "ice axe"}]})
        for connection in waiting:
            status, _, answer = read_answer(connection)
            # Both return to the queue at once, which has room for one.
            assert status in (200, 429)
            assert status == 429 or answer["version"] == 1


def test_who_waits_for_a_version_and_leaves_frees_the_place(serve) -> None:
    service = serve(version_waiters=1)
    far = {**TENT, "min_version": 1_000}
    with closing(service.connect()) as connection:
        connection.sendall(post("/predict", far))
        wait_for(lambda: service.metric("keymatch_version_waiters 1.0"))
        assert_problem(service.client.post("/predict", json=far), 429)
    wait_for(lambda: service.metric("keymatch_version_waiters 0.0"))
    assert service.metric('keymatch_rejected_total{reason="disconnected"} 1.0')
    assert service.metric('keymatch_requests_total{route="/predict",status="499"} 1.0')
    late = service.client.post("/predict", json={**far, "deadline_ms": 50})
    assert_problem(late, 504)  # it was admitted, and waited
