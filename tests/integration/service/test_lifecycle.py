"""Start and stop: probes while the bundle opens, requests in flight at a signal, an unread log.

Under the costliest queries the service stops in time, and answers or refuses each of them.
"""

import os
import re
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from service.child_server import Server, free_port
from service.engine import loaded_bundle
from service.server.worker import MARGIN_SECONDS
from tests.support.children import child_processes
from tests.support.http.problems import assert_problem
from tests.support.http.server import TENT, post, read_answer
from tests.support.serving import LocalService, ServerProcess, server_process, wait_for
from tests.support.tiny.bundles import Catalogue, make_bundle
from tests.support.waiting import READY_WITHIN

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %b\r\n\r\n" % (b"a" * 128)
PIPELINED = 50  # number of requests that are sent at once
TWO = ("--workers", "2")
BOTH = [
    pytest.param((), id="one"),
    pytest.param(TWO, id="supervised", marks=pytest.mark.slow),
]


def test_the_probes_follow_the_opening(
    serve: Callable[..., LocalService], monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed, open_bundle = threading.Event(), loaded_bundle.open_bundle

    def open_slowly(folder: Path, **how: object) -> object:
        assert proceed.wait(60)
        return open_bundle(folder, **how)

    monkeypatch.setattr(loaded_bundle, "open_bundle", open_slowly)
    service = serve(wait=False)
    try:
        assert service.get("/health/live").json() == {"status": "live"}
        assert service.get("/metrics").status_code == 200
        for path in ("/health/ready", "/info", "/labels", "/labels/tent"):
            problem = assert_problem(service.get(path), 503)
            assert problem["detail"] == "the service is starting"
        assert_problem(service.post("/predict", TENT), 503)
        assert_problem(service.post("/labels", {"labels": [{"text": "a"}]}), 503)
        assert_problem(service.post("/predict", {}), 422)  # an invalid request at any time
    finally:
        proceed.set()
    service.wait_ready()
    assert service.get("/health/ready").json() == {"status": "ready", "writes": "accepted"}
    assert service.post("/predict", TENT).status_code == 200


def test_a_failed_opening_is_never_ready_and_needs_a_restart(
    serve: Callable[..., LocalService], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_folder: Path, **_how: object) -> object:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(loaded_bundle, "open_bundle", fail)
    service = serve(wait=False)
    wait_for(lambda: service.engine.failure)
    assert_problem(service.get("/health/live"), 503)
    problem = assert_problem(service.get("/health/ready"), 503)
    assert problem["detail"] == "the service is failed"
    assert_problem(service.post("/predict", TENT), 503)


def test_info_tells_what_is_served(reader: LocalService) -> None:
    info = reader.get("/info").json()
    names = {"version", "device", "bundle", "score_kind", "novel_labels", "memory", "snapshot"}
    assert info.keys() == names | {"limits"}
    assert info["snapshot"] is None
    assert info["device"] == "cpu"
    assert (info["bundle"]["name"], info["bundle"]["dataset"]) == ("tiny", "outdoor goods")
    assert info["memory"] == {
        "base_rows": 14, "sealed_rows": 0, "live_rows": 0, "dead_rows": 0, "segments": 1,
        "unsealed_segments": 0, "labels": 6, "live_labels": 0, "rules": 0, "items": 0,
        "live_bytes": 0,
    }  # fmt: skip
    assert info["limits"]["queries"] == 256
    assert info["limits"]["body_bytes"] == 4_194_304


def test_sigterm_answers_what_was_accepted(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    # Encoding children only get idle CPU time, and a busy machine has little of it.
    config = tmp_path / "keymatch.toml"
    config.write_text("[server]\nshutdown_seconds = 60\n")
    server = start("--config", str(config))
    with ExitStack() as open_sockets:

        def send(path: str, document: object) -> socket.socket:
            connection = open_sockets.enter_context(server.connect())
            connection.sendall(post(path, document))
            return connection

        # When the signal comes, a long write and reads that wait for it are in flight.
        texts = [f"{number} words of {number % 7}" for number in range(100)]
        labels = [{"text": f"label {number}", "queries": texts} for number in range(40)]
        writing = send("/labels", {"labels": labels})
        wait = {**TENT, "min_version": 40}
        reading = [send("/predict", wait) for _ in range(5)]
        wait_for(lambda: "keymatch_version_waiters 5.0" in server.client.get("/metrics").text)
        assert "keymatch_memory_version 0.0" in server.client.get("/metrics").text
        assert server.stop() == 0
        answers = [read_answer(connection) for connection in (writing, *reading)]
    assert [status for status, _, _ in answers] == [200] * 6
    assert {body["version"] for _, _, body in answers} == {40}
    assert not server.logged("defect")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port)).close()


@contextmanager
def inherited(handling: signal.Handlers) -> Iterator[None]:
    """Processes started in the block get this handling of SIGHUP, even if tests run under nohup."""
    usual = signal.signal(signal.SIGHUP, handling)
    yield
    signal.signal(signal.SIGHUP, usual)


def hang_up(server: ServerProcess) -> None:
    """Send SIGHUP to all processes, like a closed terminal."""
    for process in {server.process.pid, *server.workers}:
        os.kill(process, signal.SIGHUP)


@pytest.mark.parametrize(
    ("number", "options"),
    [
        pytest.param(signal.SIGHUP, (), id="hangup of one"),
        pytest.param(signal.SIGHUP, TWO, id="hangup", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, TWO, id="interrupt", marks=pytest.mark.slow),
    ],
)
def test_a_hangup_or_interrupt_answers_what_was_accepted(
    start: Callable[..., ServerProcess], number: signal.Signals, options: tuple[str, ...]
) -> None:
    with inherited(signal.SIG_DFL):
        server = start(*options)
    with closing(server.connect()) as accepted:
        accepted.sendall(post("/predict", {**TENT, "min_version": 1, "deadline_ms": 1_500}))
        wait_for(lambda: "keymatch_version_waiters 1.0" in server.client.get("/metrics").text)
        if number == signal.SIGHUP:
            hang_up(server)
        else:
            server.process.send_signal(number)
        assert accepted.recv(100).startswith(b"HTTP/1.1 504 ")
    assert server.process.wait(READY_WITHIN) == 0
    assert not server.logged("defect")


@pytest.mark.parametrize("options", [(), TWO], ids=["one", "supervised"])
def test_sigterm_while_opening_ends_orderly(
    start: Callable[..., ServerProcess], options: tuple[str, ...]
) -> None:
    assert start(*options, wait=False).stop() == 0


@pytest.mark.parametrize("options", BOTH)
def test_a_hangup_is_ignored_under_nohup(
    start: Callable[..., ServerProcess], options: tuple[str, ...]
) -> None:
    with inherited(signal.SIG_IGN):
        server = start(*options)
    hang_up(server)
    sleep(1)  # longer than the supervisor's interval between checks for signals
    assert server.client.post("/predict", json=TENT).status_code == 200
    assert server.process.poll() is None
    assert server.stop() == 0


@pytest.mark.parametrize("options", BOTH)
def test_a_log_that_nobody_reads_stops_nobody(
    tiny_bundle_folder: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log, port = tmp_path / "log", free_port()
    os.mkfifo(log)
    unread = os.open(log, os.O_RDWR)
    places = ("--bundle", str(tiny_bundle_folder), "--state", str(tmp_path / "state"))
    workers = options or ("--workers", "1")
    command = [sys.executable, "-m", "service", "serve", *places, "--port", str(port), *workers]
    server = Server(command, log=log, port=port)
    try:
        server.wait_ready()
        with closing(httpx.Client(base_url=server.url, timeout=10)) as client:
            while not re.search(r"dropped_log_lines_total [1-9]", client.get("/metrics").text):
                ask_with_long_log_lines(port)
            assert client.post("/predict", json=TENT).status_code == 200
        start = monotonic()
        assert server.stop() == 0
        assert monotonic() - start < 10
    finally:
        server.kill()
        os.close(unread)


def ask_with_long_log_lines(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for _ in range(10):
            connection.sendall(LIVE * PIPELINED)
            received = b""
            while received.count(b'{"status":"live"}') < PIPELINED:
                received += connection.recv(65_536)


# Leaving a load balancer ----------------------------------------------------------------------


@pytest.mark.parametrize("options", BOTH)
def test_a_leaving_service_answers_and_ends_each_connection_with_its_answer(
    start: Callable[..., ServerProcess], tmp_path: Path, options: tuple[str, ...]
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text("[server]\nleave_seconds = 600\nidle_seconds = 600\n")
    server = start("--config", str(config), *options)
    # Connections that a client keeps, over as many workers as there are.
    kept = [httpx.Client(base_url=server.url, timeout=60) for _ in range(8)]
    with ExitStack() as clients:
        for client in map(clients.enter_context, kept):
            answer = client.post("/predict", json=TENT)
            assert "connection" not in answer.headers
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: asked_once(server, "GET", "/health/ready").status_code == 503)
        for client in kept:
            # Workers begin to leave one after the other, and until then keep their connections.
            wait_for(partial(is_closing, client))
        label = {"labels": [{"text": "late"}]}
        assert_closing(asked_once(server, "POST", "/labels", json=label))
        assert_problem(asked_once(server, "GET", "/health/ready"), 503)
        assert asked_once(server, "GET", "/health/live").status_code == 200
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)  # as a second signal it ends the wait
        assert server.process.wait(READY_WITHIN) == 0
    assert not server.logged("defect")


def asked_once(server: ServerProcess, method: str, path: str, **how: Any) -> httpx.Response:
    """Return the answer on a new connection."""
    return httpx.request(method, f"{server.url}{path}", timeout=60, **how)


def is_closing(client: httpx.Client) -> bool:
    answer = client.post("/predict", json=TENT)
    assert answer.status_code == 200, answer.text
    return answer.headers.get("connection") == "close"


def assert_closing(answer: httpx.Response) -> None:
    assert answer.status_code == 200, answer.text
    assert answer.headers["connection"] == "close"


@pytest.mark.slow
def test_a_worker_that_is_not_ready_leaves_with_the_others(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text("[server]\nleave_seconds = 600\n")
    server = start("--config", str(config), *TWO)
    workers = partial(child_processes, server.process.pid, "--multiprocessing-fork")
    first, second = workers()
    os.kill(second, signal.SIGKILL)
    wait_for(lambda: set(workers()) - {first, second})
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: asked_once(server, "GET", "/health/ready").status_code == 503)
    os.kill(first, signal.SIGSTOP)  # only the replacement can answer now

    def left() -> bool:
        """Return whether the replacement leaves, or ended since it had no handler yet."""
        if set(workers()) == {first}:
            return True
        with suppress(httpx.TransportError):
            assert_closing(httpx.post(f"{server.url}/predict", json=TENT, timeout=1))
            return True
        return False

    wait_for(left)
    os.kill(first, signal.SIGCONT)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(READY_WITHIN) == 0


def test_a_service_that_is_not_ready_does_not_stay_to_leave(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text("[server]\nleave_seconds = 600\n")
    assert start("--config", str(config), *TWO, wait=False).stop() == 0


# Under load -----------------------------------------------------------------------------------


# One thread needs many seconds for this on any machine; `held_bytes` admits all of it.
REQUESTS = 60
COSTLY = {"top_k": 1_000, "depth": 2_000, "explain": True, "memorization": 1.0}
SETTINGS = """
[server]
shutdown_seconds = 1
[limits]
held_bytes = 2_000_000_000
[engine]
threads = 1
queue_queries = 1_000_000
queue_target_ms = 60_000
queue_interval_ms = 60_000
"""


@pytest.fixture
def large_bundle(tmp_path: Path) -> Path:
    """A bundle with so many keys that the costliest query takes long."""
    words = [f"{a}{b}{c}" for a in "abcdefghijklm" for b in "aeiou" for c in "nopqrstuvwxyzbcdfgh"]
    labels = {word: f"{word} goods" for word in words}
    instances = {f"{word} wanted": (word, words[0]) for word in words}
    return make_bundle(tmp_path / "bundle", Catalogue(labels=labels, instances=instances))


def test_costly_requests_are_answered_or_refused_when_the_service_ends(
    large_bundle: Path, tmp_path: Path
) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text(SETTINGS)
    places = (large_bundle, tmp_path / "state", tmp_path / "log")
    with server_process(*places, "--config", str(config)) as server, ExitStack() as sockets:
        asked = [sockets.enter_context(server.connect()) for _ in range(REQUESTS)]
        for number, connection in enumerate(asked):
            queries = [f"{word} {number} goods" for word in "abcdefghijklmnop"]
            body = {**COSTLY, "queries": queries, "deadline_ms": 60_000}
            connection.sendall(post("/predict", body))
        wait_for(lambda: "keymatch_queue_depth 0.0" not in server.client.get("/metrics").text)
        sleep(0.5)
        start = monotonic()
        assert server.stop() == 0
        seconds = monotonic() - start
        answers = [read_answer(connection) for connection in asked]
    statuses = Counter(status for status, _, _ in answers)
    assert set(statuses) <= {200, 503}, statuses
    assert statuses[503] > 0, "the work was done before the time was over: make it more"
    assert all(body["type"].startswith("urn:") for status, _, body in answers if status == 503)
    assert seconds < 1 + MARGIN_SECONDS + 2
    assert not server.logged("defect")
