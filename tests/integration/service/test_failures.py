"""Overload, deadlines and defects: every request gets an answer and the service goes on."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from service.core.errors import LogError
from tests.support.holding import hold
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import wait_for

TENT = {"queries": ["tent"]}
AXE = {"labels": [{"text": "ice axe"}]}


@pytest.fixture
def in_thread() -> Iterator[Callable[..., "Future[httpx.Response]"]]:
    """`in_thread(function, ...)` calls a function in another thread."""
    with ThreadPoolExecutor(8) as threads:
        yield threads.submit


def fail(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: BaseException) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise error

    monkeypatch.setattr(owner, name, broken)


def test_a_full_queue_is_a_429_and_passes(serve, in_thread, monkeypatch) -> None:
    service = serve(threads=1, queue_queries=3)
    held = hold(monkeypatch, service.engine.loaded.predictor, "predict")
    first = in_thread(
        service.post, "/predict", {"queries": ["tent", "lamp"], "deadline_ms": 60_000}
    )
    assert held.entered.wait(60)
    refused = service.post("/predict", {"queries": ["a", "b"]})
    assert_problem(refused, 429)
    assert int(refused.headers["retry-after"]) >= 1
    held.released.set()
    assert first.result().status_code == 200
    assert service.post("/predict", {"queries": ["a", "b"]}).status_code == 200
    assert 'keymatch_rejected_total{reason="queue_full"} 1.0' in service.get("/metrics").text


def test_a_request_larger_than_the_queue_is_answered_when_it_is_alone(serve) -> None:
    service = serve(queue_queries=3)
    assert service.post("/predict", {"queries": ["tent"] * 256}).status_code == 200


def test_too_many_waiting_labels_are_a_429(serve, in_thread, monkeypatch) -> None:
    service = serve(queue_labels=1)
    held = hold(monkeypatch, service.engine._log, "exclusive")
    first = in_thread(service.post, "/labels", AXE)
    assert held.entered.wait(60)
    refused = service.post("/labels", {"labels": [{"text": "crampon"}]})
    assert_problem(refused, 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert service.post("/predict", TENT).json()["version"] == 0  # reads do not wait for writes
    held.released.set()
    assert first.result().status_code == 200
    assert service.post("/labels", {"labels": [{"text": "crampon"}]}).json()["version"] == 2


def test_a_deadline_of_one_millisecond_under_load_is_a_504(serve, in_thread, monkeypatch) -> None:
    service = serve(threads=1)
    held = hold(monkeypatch, service.engine.loaded.predictor, "predict")
    first = in_thread(service.post, "/predict", {**TENT, "deadline_ms": 60_000})
    assert held.entered.wait(60)
    assert_problem(service.post("/predict", {"queries": ["a"], "deadline_ms": 1}), 504)
    held.released.set()
    assert first.result().status_code == 200
    wait_for(lambda: "keymatch_queue_depth 0.0" in service.get("/metrics").text)
    assert service.post("/predict", {**TENT, "deadline_ms": 60_000}).status_code == 200
    assert 'keymatch_rejected_total{reason="deadline"} 1.0' in service.get("/metrics").text


def test_a_full_memory_is_a_507_and_reads_go_on(serve) -> None:
    service = serve(live_rows=2)
    assert service.post("/labels", AXE).status_code == 200
    two_rows = {"labels": [{"text": "crampon", "queries": ["spikes for ice"]}]}
    assert_problem(service.post("/labels", two_rows), 507)
    assert service.post("/predict", TENT).json()["version"] == 1
    assert service.post("/labels", {"labels": [{"text": "crampon"}]}).json()["version"] == 2


def test_a_defect_is_a_500_without_its_message(service, monkeypatch, caplog) -> None:
    with monkeypatch.context() as broken:
        fail(
            broken,
            service.engine.loaded.predictor,
            "predict",
            RuntimeError("secret at /etc/passwd"),
        )
        answer = service.post("/predict", TENT)
        assert_problem(answer, 500)
        assert_no_internals(answer)
        assert "secret" not in answer.text
    [record] = [record for record in caplog.records if record.message == "defect"]
    assert record.levelno == logging.ERROR
    assert "secret" in str(record.exc_info[1])
    assert service.post("/predict", TENT).status_code == 200
    assert "keymatch_queue_depth 0.0" in service.get("/metrics").text


@pytest.mark.parametrize("error", [LogError("disk full at /var"), OSError("disk full at /var")])
def test_a_failing_log_is_a_503_and_reads_go_on(service, monkeypatch, error) -> None:
    with monkeypatch.context() as broken:
        fail(broken, service.engine._log, "exclusive", error)
        answer = service.post("/labels", AXE)
        assert_problem(answer, 503)
        assert "/var" not in answer.text
        assert service.post("/predict", TENT).json()["version"] == 0
        assert_problem(service.get("/labels/ice%20axe"), 404)
    assert service.get("/health/ready").status_code == 200
    assert service.post("/labels", AXE).json()["version"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_writer_that_dies_leaves_nobody_waiting(service, in_thread, monkeypatch) -> None:
    held = hold(monkeypatch, service.engine._writer, "_write")
    held._function = lambda _jobs: (_ for _ in ()).throw(SystemExit)
    first = in_thread(service.post, "/labels", AXE)
    assert held.entered.wait(60)
    behind = [in_thread(service.post, "/labels", AXE) for _ in range(3)]
    wait_for(lambda: service.engine._writer._queue._waiting == 4)
    held.released.set()
    for answer in (first, *behind):
        assert_problem(answer.result(60), 503)
    assert_problem(service.post("/labels", AXE), 503)
    assert_problem(service.get("/health/ready"), 503)
    assert_problem(service.get("/health/live"), 503)  # only a restart can help
    assert service.post("/predict", TENT).status_code == 200


def test_a_memory_that_failed_to_publish_catches_up_with_the_log(service, monkeypatch) -> None:
    with monkeypatch.context() as broken:
        fail(broken, service.engine.loaded.memory, "publish", MemoryError("no page left"))
        broken.setattr(service.engine._writer, "wake", lambda: None)
        assert_problem(service.post("/labels", AXE), 503)
    assert service.post("/labels", {"labels": [{"text": "crampon"}]}).json()["version"] == 2
    assert service.get("/labels/ice%20axe").json()["version"] == 1


def test_a_log_ahead_of_the_memory_stops_the_writer_until_a_restart(serve, monkeypatch) -> None:
    service = serve()
    with monkeypatch.context() as broken:
        fail(broken, service.engine.loaded.memory, "publish", MemoryError("no page left"))
        assert_problem(service.post("/labels", AXE), 503)
        # Another write would make a version that lacks what the log holds.
        wait_for(lambda: not service.engine.ready())
    assert_problem(service.post("/labels", {"labels": [{"text": "crampon"}]}), 503)
    assert_problem(service.get("/health/ready"), 503)
    assert service.post("/predict", TENT).json()["version"] == 0
    service.engine.close()
    restarted = serve()
    assert restarted.get("/labels/ice%20axe").json()["version"] == 1
    assert restarted.post("/labels", {"labels": [{"text": "crampon"}]}).json()["version"] == 2
