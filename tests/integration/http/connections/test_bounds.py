"""Clients that flood the service or keep idle connections take limited resources and time."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from service.server.connection import MOST_FIELDS, MOST_PIPELINED, ConnectionGuard
from service.settings import ServerSettings, load_settings
from tests.support.http.server import (
    TENT,
    HttpService,
    http_service,
    post,
    read_answer,
    read_problem,
)
from tests.support.waiting import wait_for

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEADER = b"POST /labels HTTP/1.1\r\nHost: localhost\r\n"
NDJSON = b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def impatient(
    tiny_bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpService]:
    """A service that waits for nothing longer than a second."""
    server = ServerSettings(header_seconds=1, body_seconds=1, idle_seconds=1)
    state = tmp_path_factory.mktemp("state")
    with http_service(tiny_bundle_folder, state, server=server) as service:
        yield service


def ends(connection: socket.socket) -> bool:
    """Return whether the service closes the connection, perhaps after a last answer."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def dribble(connection: socket.socket, piece: bytes, seconds: float) -> bool:
    """Send a piece every tenth of a second; return whether the service closed the connection."""
    connection.settimeout(0.1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            connection.sendall(piece)
            if connection.recv(65536):
                return ends(connection)
            return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize("shape", ["many fields", "one value", "the path"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_header_has_a_greatest_length(service: HttpService, shape: str, at_once: bool) -> None:
    lines = {
        "many fields": LIVE[:-2] + b"x-field: and its value\r\n" * 2_000 + b"\r\n",
        "one value": LIVE[:-2] + b"x-field: " + b"a" * 40_000 + b"\r\n\r\n",
        "the path": LIVE.replace(b"live", b"a" * 40_000),
    }
    with closing(service.connect()) as connection:
        for piece in [lines[shape]] if at_once else [lines[shape][:10], lines[shape][10:]]:
            connection.sendall(piece)
            time.sleep(0.05)
        problem = read_problem(connection, 431)
    assert problem["type"] == "urn:keymatch:problem:header-too-large"


@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_a_header_has_a_greatest_number_of_fields(service: HttpService, end: bytes) -> None:
    with closing(service.connect()) as connection:
        connection.sendall(LIVE[:-2] + b"a:b\r\n" * (MOST_FIELDS - 1) + b"\r\n")
        assert read_answer(connection)[0] == 200
        connection.sendall(LIVE[:-2] + b"a:b\r\n" * 5_000 + end)
        assert f"the {MOST_FIELDS} fields" in read_problem(connection, 431)["detail"]


def test_a_trailer_adds_nothing_to_its_request(service: HttpService) -> None:
    request = HEADER + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailer = b"idempotency-key: one\r\n" + b"a:b\r\n" * 200
    with closing(service.connect()) as connection:
        for text in (b"axes", b"rope"):
            body = b'{"labels": [{"text": "%s"}]}' % text
            connection.sendall(request + b"%x\r\n%s\r\n0\r\n" % (len(body), body))
            connection.sendall(trailer + b"\r\n")
            assert read_answer(connection)[0] == 200
        connection.sendall(request + b"0\r\n" + b"a:b\r\n" * 5_000)
        assert ends(connection)
    assert len(service.client.get("/labels").json()["labels"]) == 2


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (LIVE[:-2] + b"x-field: ", b"a" * 65_536),
        (HEADER + NDJSON + b"0\r\n", b"x-field: and its value\r\n" * 2_000),
    ],
    ids=["header", "trailers"],
)
def test_an_endless_header_is_not_held(service: HttpService, start: bytes, piece: bytes) -> None:
    with closing(service.connect()) as connection, pytest.raises(OSError):
        connection.sendall(start)
        for _ in range(20_000):  # more than the service discards before it closes
            connection.sendall(piece)
    assert service.client.get("/health/live").status_code == 200


def test_a_long_header_and_a_large_body_are_no_large_header(service: HttpService) -> None:
    with closing(service.connect()) as connection:
        field = "X-Field: " + "a" * 30_000
        connection.sendall(post("/predict", {"queries": ["tent"] * 20_000}, field))
        assert read_answer(connection)[0] == 422
        connection.sendall(LIVE)
        assert read_answer(connection)[0] == 200


def test_a_header_must_come_in_time(impatient: HttpService) -> None:
    slow_requests = 'keymatch_rejected_total{reason="slow"}'
    before = impatient.value(slow_requests)
    with closing(impatient.connect()) as silent, closing(impatient.connect()) as slow:
        slow.sendall(HEADER)
        assert dribble(slow, b"x-field: 1\r\n", 10)
        assert ends(silent)
    wait_for(lambda: impatient.value(slow_requests) == before + 1)


def test_a_body_must_come_in_time(impatient: HttpService) -> None:
    with closing(impatient.connect()) as connection:
        connection.sendall(post("/predict", TENT)[:-10])
        problem = read_problem(connection, 408)
    assert problem["detail"] == "the body did not come within 1 seconds"


def test_a_body_after_its_answer_must_come_in_time(impatient: HttpService) -> None:
    with closing(impatient.connect()) as connection:
        connection.sendall(
            b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
        )
        assert read_answer(connection)[0] == 404
        assert dribble(connection, b"x", 10)


@pytest.mark.slow
def test_a_stream_may_last_as_long_as_it_moves(serve: Callable[..., HttpService]) -> None:
    service = serve(server=ServerSettings(body_seconds=1, idle_seconds=2))
    with closing(service.connect()) as connection:
        connection.sendall(HEADER + NDJSON)
        for number in range(6):
            line = b'{"text": "label %d"}\n' % number
            connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))
            time.sleep(1)
        assert ends(connection)
    assert len(service.client.get("/labels").json()["labels"]) == 6


def test_an_idle_connection_ends_whatever_it_sends(impatient: HttpService) -> None:
    with closing(impatient.connect()) as connection:
        connection.sendall(LIVE)
        read_answer(connection)
        assert dribble(connection, b"\r\n", 10)


def test_a_client_that_never_reads_is_left(impatient: HttpService) -> None:
    request = LIVE.replace(b"/health/live", b"/openapi.json")
    with closing(impatient.connect()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.5)
        with pytest.raises(OSError):
            while True:
                connection.sendall(request)
        wait_for(lambda: impatient.connections <= 1)  # the client's own connection


def test_who_only_holds_on_makes_room(serve: Callable[..., HttpService]) -> None:
    service = serve(server=ServerSettings(connections=20, probe_connections=2))
    with ExitStack() as holding:
        for number in range(60):
            connection = holding.enter_context(closing(service.connect()))
            connection.sendall((HEADER, b"", LIVE)[number % 3])
        for _ in range(5):
            with closing(service.connect()) as connection:
                connection.sendall(post("/predict", TENT))
                assert read_answer(connection)[0] == 200
        assert service.connections <= 22


def test_probes_are_answered_when_all_connections_are_at_work(
    serve: Callable[..., HttpService],
) -> None:
    service = serve(server=ServerSettings(connections=4, probe_connections=2))
    service.client.close()
    wait_for(lambda: not service.connections)
    waiting = post("/predict", TENT | {"min_version": 1})
    with ExitStack() as holding:
        for _ in range(4):
            connection = holding.enter_context(closing(service.connect()))
            connection.sendall(waiting)
        wait_for(lambda: service.connections == 4)
        time.sleep(0.2)
        with closing(service.connect()) as connection:
            connection.sendall(LIVE)
            assert read_answer(connection)[0] == 200
            connection.sendall(post("/predict", TENT))
            problem = read_problem(connection, 503)
        assert problem["type"] == "urn:keymatch:problem:too-many-connections"


def test_who_waits_for_a_version_leaves_connections_to_others(
    serve: Callable[..., HttpService], tmp_path: Path
) -> None:
    (tmp_path / "keymatch.toml").write_text("[server]\nconnections = 40\n")
    settings = load_settings(tmp_path / "keymatch.toml", {})
    waiters = settings.engine.version_waiters
    service = serve(server=settings.server, version_waiters=waiters)
    waiting = post("/predict", TENT | {"min_version": 1})
    with ExitStack() as holding:
        for _ in range(60):
            connection = holding.enter_context(closing(service.connect()))
            connection.sendall(waiting)
        wait_for(lambda: service.metric(f"keymatch_version_waiters {waiters:.1f}"))
        for _ in range(5):
            with closing(service.connect()) as connection:
                connection.sendall(post("/predict", TENT))
                assert read_answer(connection)[0] == 200


def test_requests_sent_before_an_answer_have_a_greatest_number(service: HttpService) -> None:
    with closing(service.connect()) as connection:
        connection.sendall(LIVE * (MOST_PIPELINED + 10))
        assert read_answer(connection)[0] == 200
        assert ends(connection)


def test_fewer_connections_are_taken_than_files_can_be_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"now": (256, 512)}
    module = "service.server.connection.resource"
    monkeypatch.setattr(f"{module}.getrlimit", lambda _what: limits["now"])
    monkeypatch.setattr(f"{module}.setrlimit", lambda _what, new: limits.update(now=new))
    assert ConnectionGuard(ServerSettings(connections=100)).most == 100
    assert limits["now"] == (256, 512)
    assert ConnectionGuard(ServerSettings(connections=300)).most == 300
    assert limits["now"] == (300 + 16 + 128, 512)
    assert ConnectionGuard(ServerSettings(connections=1_000)).most == 512 - 16 - 128
    assert limits["now"] == (512, 512)
    assert "fewer connections" in caplog.text
