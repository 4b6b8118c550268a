"""Start and stop: probes while the bundle opens, and requests in flight at SIGTERM."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.engine import loaded_bundle
from tests.support.http.problems import assert_problem
from tests.support.http.server import TENT, post, read_answer
from tests.support.serving import LocalService, ServerProcess, wait_for


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
        "unsealed_segments": 0, "labels": 6, "live_labels": 0, "items": 0,
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


def test_sigterm_while_opening_ends_orderly(start: Callable[..., ServerProcess]) -> None:
    assert start(wait=False).stop() == 0
