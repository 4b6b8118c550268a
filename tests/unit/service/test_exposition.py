"""The text is prometheus_client's, without times of creation, and other threads run meanwhile."""

import threading
import time

import pytest
from prometheus_client import generate_latest

from service import exposition
from service.telemetry import STAGES, Telemetry


@pytest.fixture
def telemetry() -> Telemetry:
    telemetry = Telemetry()
    telemetry.observe_stages(dict.fromkeys(STAGES, 0.001))
    for status in (200, 429):
        telemetry.observe_request("/predict", status, 0.003)
    telemetry.memory_rows.labels("base").set(14)
    return telemetry


def without_creation(text: str) -> list[str]:
    return [line for line in text.splitlines() if "_created" not in line]


def test_the_text_is_that_of_the_library(telemetry: Telemetry) -> None:
    expected = without_creation(generate_latest(telemetry.registry).decode())
    assert telemetry.render().decode().splitlines() == expected
    assert telemetry.render() == telemetry.render()


def test_it_rests_before_each_family(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(exposition, "sleep", rests.append)
    text = telemetry.render().decode()
    assert len(rests) == text.count("# TYPE ") > 10


def test_what_is_counted_meanwhile_is_not_lost(telemetry: Telemetry) -> None:
    def count() -> None:
        for _ in range(200):
            telemetry.observe_request("/predict", 200, 0.003)
            telemetry.observe_request("/labels", 200, 0.003)
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    while thread.is_alive():
        telemetry.render()
    thread.join()
    lines = telemetry.render().decode().splitlines()
    assert 'keymatch_requests_total{route="/predict",status="200"} 201.0' in lines
    assert 'keymatch_request_seconds_count{route="/labels"} 200.0' in lines
