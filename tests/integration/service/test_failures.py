"""Under overload, deadlines and defects, every request gets an answer and the service goes on."""

import logging
import os
import signal
from pathlib import Path

import pytest

from service.core.encoding.encoder import OnnxEncoder
from service.settings import Limits
from tests.support.children import child_processes
from tests.support.holding import hold
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import wait_for

TENT = {"queries": ["tent"]}
AXE = {"labels": [{"text": "ice axe"}]}
ROPE = {"labels": [{"text": "rope"}]}


class _NeverSet:
    """Replaces an event, and never reports that it was set."""

    def is_set(self) -> bool:
        return False

    def set(self) -> None:
        pass


def fail(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: BaseException) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise error

    monkeypatch.setattr(owner, name, broken)


def test_a_full_queue_is_a_429_and_passes(serve, aside, monkeypatch) -> None:
    service = serve(threads=1, queue_queries=3)
    held = hold(monkeypatch, service.engine.loaded.predictor, "encode")
    first = aside(service.post, "/predict", {"queries": ["tent", "lamp"], "deadline_ms": 60_000})
    assert held.entered.wait(60)
    refused = service.post("/predict", {"queries": ["a", "b"]})
    assert_problem(refused, 429)
    assert int(refused.headers["retry-after"]) >= 1
    held.released.set()
    assert first.result().status_code == 200
    # A request that is larger than the queue is answered if it is alone.
    assert service.post("/predict", {"queries": ["tent"] * 256}).status_code == 200
    assert 'keymatch_rejected_total{reason="queue_full"} 1.0' in service.get("/metrics").text


def test_too_many_waiting_labels_are_a_429(serve, aside, monkeypatch) -> None:
    service = serve(queue_labels=1)
    held = hold(monkeypatch, service.engine._log, "exclusive")
    first = aside(service.post, "/labels", AXE)
    assert held.entered.wait(60)
    refused = service.post("/labels", {"labels": [{"text": "crampon"}]})
    assert_problem(refused, 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert service.post("/predict", TENT).json()["version"] == 0  # reads do not wait for writes
    held.released.set()
    assert first.result().status_code == 200
    assert service.post("/labels", {"labels": [{"text": "crampon"}]}).json()["version"] == 2


def test_a_write_that_waits_too_long_is_refused_and_never_written(
    serve, aside, monkeypatch
) -> None:
    service = serve(write_deadline_ms=200)
    held = hold(monkeypatch, service.engine._log, "exclusive")
    begun = aside(service.post, "/labels", AXE)
    assert held.entered.wait(60)
    key = {"Idempotency-Key": "rope"}
    waiting = aside(service.post, "/labels", ROPE, headers=key)

    assert_problem(waiting.result(60), 504)  # answered although the writer is stuck

    late = service.post("/labels", {"labels": [{"text": "crampon"}]})
    assert_problem(late, 429)  # the delay of the queue is known now, so it is refused at once
    assert int(late.headers["retry-after"]) >= 1
    held.released.set()
    assert begun.result(60).json()["version"] == 1  # a write that was begun is completed
    assert_problem(service.get("/labels/rope"), 404)
    assert [event.body["id"] for event in service.engine._log.read()] == ["ice axe"]
    again = service.post("/labels", ROPE, headers=key)  # the refusal was not stored for this key
    assert (again.status_code, again.json()["version"]) == (200, 2)
    assert service.post("/labels", ROPE, headers=key).json() == again.json()
    assert 'keymatch_rejected_total{reason="deadline"} 1.0' in service.get("/metrics").text


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_labels_whose_encoding_is_starved_are_refused(serve) -> None:
    service = serve(children=True, write_deadline_ms=200, threads=1)
    many = {"labels": [{"text": f"rope of {metres} metres"} for metres in range(20)]}
    [child] = child_processes(os.getpid(), "service.core.encoding.child")
    os.kill(child, signal.SIGSTOP)
    try:
        assert_problem(service.post("/labels", many), 504)
        # The service encodes few texts without a child.
        assert service.post("/labels", AXE).json()["version"] == 1
        assert_problem(service.get("/labels/rope of 7 metres"), 404)
    finally:
        os.kill(child, signal.SIGCONT)
    assert service.post("/labels", many).json()["version"] == 21


def test_the_default_deadline_grows_with_what_a_request_costs(serve, aside, monkeypatch) -> None:
    limits = Limits(default_deadline_ms=100, default_deadline_query_ms=10, deadline_ms=30_000)
    service = serve(threads=1, limits=limits)
    held = hold(monkeypatch, service.engine.loaded.predictor, "encode")
    first = aside(service.post, "/predict", {**TENT, "deadline_ms": 30_000})
    assert held.entered.wait(60)
    for queries, options, deadline_ms in (
        (1, {}, 100),
        (3, {}, 120),
        (3, {"depth": 1000}, 150),
        (3, {"deadline_ms": 40}, 40),
        (1, {"deadline_ms": 1}, 1),
    ):
        body = {"queries": ["boots"] * queries, **options}
        problem = assert_problem(service.post("/predict", body), 504)
        assert problem["detail"].endswith(
            f"`deadline_ms` was {deadline_ms}: set a longer one, of at most 30000, or send fewer"
            " queries at once"
        )
    held.released.set()
    assert first.result().status_code == 200
    wait_for(lambda: "keymatch_queue_depth 0.0" in service.get("/metrics").text)
    assert service.post("/predict", {**TENT, "deadline_ms": 30_000}).status_code == 200
    assert 'keymatch_rejected_total{reason="deadline"} 5.0' in service.get("/metrics").text


def test_a_full_memory_is_a_507_and_reads_go_on(serve) -> None:
    service = serve(live_rows=2)
    assert service.post("/labels", AXE).status_code == 200
    two_rows = {"labels": [{"text": "crampon", "queries": ["spikes for ice"]}]}
    assert_problem(service.post("/labels", two_rows), 507)
    assert service.post("/predict", TENT).json()["version"] == 1
    assert service.post("/labels", {"labels": [{"text": "crampon"}]}).json()["version"] == 2


@pytest.mark.parametrize(
    ("path", "document", "logged"),
    [("/predict", TENT, "defect"), ("/labels", AXE, "defect in the writer")],
)
def test_a_defect_is_a_500_without_its_message(
    service, monkeypatch, caplog, path: str, document: dict, logged: str
) -> None:
    with monkeypatch.context() as broken:
        fail(broken, OnnxEncoder, "embed", RuntimeError("secret at /etc/passwd"))
        answer = service.post(path, document)
        assert assert_problem(answer, 500)["title"] == "Internal error"
        assert_no_internals(answer)
        assert "secret" not in answer.text
        # A defect of the encoder is not reported as one of the label log.
        assert service.get("/health/ready").json()["writes"] == "accepted"
    [record] = [record for record in caplog.records if record.message == logged]
    assert record.levelno == logging.ERROR
    assert "secret" in str(record.exc_info[1])
    assert service.post(path, document).status_code == 200
    assert "keymatch_queue_depth 0.0" in service.get("/metrics").text


def test_a_memory_that_failed_to_publish_catches_up_with_the_log(service, monkeypatch) -> None:
    with monkeypatch.context() as broken:
        fail(broken, service.engine.loaded.memory, "publish", MemoryError("no page left"))
        # The writer does not learn that the log has changed.
        broken.setattr(service.engine._writer, "log_changed", _NeverSet())
        assert_problem(service.post("/labels", AXE), 503)
    assert service.post("/labels", {"labels": [{"text": "crampon"}]}).json()["version"] == 2
    assert service.get("/labels/ice%20axe").json()["version"] == 1


def test_a_log_ahead_of_the_memory_stops_the_writer_until_a_restart(serve, monkeypatch) -> None:
    service = serve()
    with monkeypatch.context() as broken:
        fail(broken, service.engine.loaded.memory, "publish", MemoryError("no page left"))
        assert_problem(service.post("/labels", AXE), 503)
        # Another write would make a version without the event in the log.
        wait_for(lambda: not service.engine.ready())
    assert_problem(service.post("/labels", {"labels": [{"text": "crampon"}]}), 503)
    assert_problem(service.get("/health/ready"), 503)
    assert service.post("/predict", TENT).json()["version"] == 0
    service.engine.close()
    restarted = serve()
    assert restarted.get("/labels/ice%20axe").json()["version"] == 1
    assert restarted.post("/labels", {"labels": [{"text": "crampon"}]}).json()["version"] == 2
