"""Metrics, request ids and log lines."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.server.memory_budget import MEMORIES
from service.settings import Limits
from service.telemetry import LIMITS
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, ServerProcess, local_service, wait_for
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS as TEXTS

LIMIT = "keymatch_limit"
ITEMS = "keymatch_items"
TENT = {"queries": ["tent"]}


def samples(service: LocalService | httpx.Client) -> dict[tuple[str, ...], float]:
    """Map (name, label values in order of label names) of every sample to its value."""
    answer = service.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def moved(before: dict[tuple[str, ...], float], after: dict[tuple[str, ...], float]) -> Any:
    changed = {key: value - before.get(key, 0) for key, value in after.items()}
    return {key: value for key, value in changed.items() if value}


def test_a_prediction_moves_its_counters(service: LocalService) -> None:
    before = samples(service)
    service.post("/predict", {"queries": ["tent", "lamp"]})
    service.post("/predict", TENT)
    after = moved(before, samples(service))
    assert after["keymatch_requests_total", "/predict", "200"] == 2
    assert after["keymatch_request_seconds_count", "/predict"] == 2
    assert after["keymatch_encode_cache_misses_total",] == 2
    assert after["keymatch_encode_cache_hits_total",] == 1
    for stage, count in {"queue": 2, "tokenize": 1, "encode": 1, "retrieve": 2, "score": 2}.items():
        assert after["keymatch_stage_seconds_count", stage] == count
    assert after["keymatch_batch_size_sum", "predict"] == 3


def test_a_write_moves_its_counters(service: LocalService) -> None:
    before = samples(service)
    service.post("/labels", {"labels": [{"text": "ice axe", "queries": ["pick"]}]})
    service.post("/labels", {"labels": [{"id": "tent", "text": "tarp"}]})
    now = samples(service)
    after = moved(before, now)
    assert after["keymatch_requests_total", "/labels", "200"] == 2
    assert after["keymatch_stage_seconds_count", "log_commit"] == 2
    assert after["keymatch_stage_seconds_count", "publish"] == 2
    assert after["keymatch_memory_version",] == 2
    assert after["keymatch_memory_rows", "live"] == 3
    assert after["keymatch_memory_rows", "tombstone"] == 1
    assert now["keymatch_memory_rows", "base"] == 14
    assert now["keymatch_log_lag_events",] == 0


def test_an_idle_service_shows_every_fixed_label_value(reader: LocalService) -> None:
    shown = samples(reader)
    stages = {key[1] for key in shown if key[0] == "keymatch_stage_seconds_count"}
    assert stages == {
        "queue", "filter", "spell", "tokenize", "encode", "fuse", "retrieve", "score", "rerank",
        "log_commit", "publish",
    }  # fmt: skip
    rows = {key[1] for key in shown if key[0] == "keymatch_memory_rows"}
    assert rows == {"base", "sealed", "live", "tombstone"}
    items = {key[1]: count for key, count in shown.items() if key[0] == ITEMS}
    assert items == {"base": 0, "sealed": 0, "live": 0, "tombstone": 0}
    [build] = [key for key in shown if key[0] == "keymatch_build_info"]
    assert "tiny" in build


def test_items_are_counted_by_kind(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "with-items", items=TEXTS)
    with local_service(bundle, tmp_path / "state") as service:
        posted = [{"id": "sleep", "text": "sleep"}, {"id": "camp", "text": "camping at night"}]
        service.post("/items", {"items": posted})
        service.request("DELETE", "/items/sleep")
        service.post("/predict", {"queries": ["lamp light"]})
        found = samples(service)
    items = {key[1]: count for key, count in found.items() if key[0] == ITEMS}
    assert items == {"base": 4, "sealed": 0, "live": 2, "tombstone": 2}
    assert found["keymatch_stage_seconds_count", "fuse"] >= 1


def test_refusals_are_counted_by_reason(reader: LocalService) -> None:
    before = samples(reader)
    reader.post("/predict", {"queries": []})
    reader.post("/predict", content=b"{", headers={"content-type": "application/json"})
    reader.get("/labels?limit=0")
    after = moved(before, samples(reader))
    assert after["keymatch_rejected_total", "invalid"] == 2
    assert after["keymatch_rejected_total", "refused"] == 1


def test_paths_and_unusual_methods_never_become_label_values(service: LocalService) -> None:
    service.get("/labels/tent")
    service.get("/labels/nope")
    known = {key[1] for key in samples(service) if key[0] == "keymatch_requests_total"}
    for path in ("/a", "/b", "/predict/x", "/%00", "/" + "x" * 3000):
        assert_problem(service.get(path), 404)
    routes = {key[1] for key in samples(service) if key[0] == "keymatch_requests_total"}
    assert routes <= known | {"unmatched", "/metrics"}
    assert not any("tent" in route or "nope" in route for route in routes)
    for method in ("BREW", "PROPFIND", "HEAD"):
        service.request(method, "/predict")
    service.request("HEAD", "/info")
    shown = samples(service)
    assert shown["keymatch_requests_total", "/predict", "405"] == 3
    assert shown["keymatch_requests_total", "/info", "200"] == 1
    assert not {"BREW", "PROPFIND", "HEAD"} & {part for key in shown for part in key}


@pytest.mark.parametrize("given", ["abc", "a" * 128, "f47ac10b-58cc-4372-a567-0e02b2c3d479", "A:1"])
def test_a_valid_request_id_is_taken_returned_and_logged(
    reader: LocalService, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    caplog.set_level(logging.INFO, "keymatch.access")
    headers = {"x-request-id": given}
    for answer, route in (
        (reader.post("/predict", TENT, headers=headers), "/predict"),
        (reader.post("/predict", {}, headers=headers), "/predict"),
        (reader.get("/nope", headers=headers), "unmatched"),
    ):
        assert answer.headers["x-request-id"] == given
        record = next(one for one in caplog.records if one.status == answer.status_code)
        assert (record.message, record.request_id, record.route) == ("request", given, route)


def test_another_request_id_is_replaced_by_one_of_its_own(reader: LocalService) -> None:
    made = set()
    for given in ("", "a" * 129, "a b", "a\tb", "<script>", 'a"b', "é"):
        answer = reader.get("/health/live", headers={b"x-request-id": given.encode()})
        assert answer.headers["x-request-id"] not in ("", given, *made)
        made.add(answer.headers["x-request-id"])


def test_a_server_logs_json_lines(server: ServerProcess) -> None:
    server.client.post("/predict", json=TENT, headers={"x-request-id": "mine"})
    # The service logs the line only after it has sent the answer.
    [line] = wait_for(
        lambda: [line for line in server.logged("request") if line["request_id"] == "mine"]
    )
    assert line["level"] == "info"
    assert (line["method"], line["route"], line["status"]) == ("POST", "/predict", 200)
    assert line["milliseconds"] > 0
    assert "tent" not in str(line)  # queries are private and must not be logged
    [ready] = server.logged("ready")
    assert ready["seconds"] > 0


def test_a_server_shows_what_its_limits_of_memory_are(server: ServerProcess) -> None:
    shown = {key[1]: value for key, value in samples(server.client).items() if key[0] == LIMIT}
    assert shown.keys() == set(LIMITS)
    assert all(shown.values())
    assert shown["metadata_bytes"] == Limits().metadata_bytes
    assert shown["live_bytes"] < shown["memory_bytes"]
    [budget] = server.logged("memory budget")
    assert budget["allowed"] == shown["memory_bytes"]
    assert budget["live memory"] == MEMORIES * shown["live_bytes"]
