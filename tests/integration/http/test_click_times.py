"""Clicks have a time, `at`, from which their weight decays if the service has a half-life."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from service.core import times
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService

HALF_LIFE: dict[str, Any] = {"click_half_life": 10.0}


def days_ago(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


def learn(service: LocalService, query: str, *labels: str, **more: Any) -> httpx.Response:
    return service.post("/instances", {"instances": [{"query": query, "labels": labels, **more}]})


def weight(service: LocalService, query: str, label_id: str) -> float:
    """Return the part of the query's own row in the votes for a label, at lambda = 1 of one row."""
    asked = {"queries": [query], "depth": 1, "memorization": 1.0, "explain": True, "top_k": 10}
    [result] = service.post("/predict", asked).json()["results"]
    [found] = [one for one in result["keywords"] if one["id"] == label_id]
    return float(found["score"])


def test_an_old_click_weighs_less(serve: Callable[..., LocalService]) -> None:
    service = serve(**HALF_LIFE)
    assert learn(service, "wilderness", "tent", at=days_ago(20)).status_code == 200
    learn(service, "wilderness", "lamp")
    assert weight(service, "wilderness", "tent") == pytest.approx(0.25, rel=0.01)
    assert weight(service, "wilderness", "lamp") == pytest.approx(1.0, rel=0.01)


def test_times_count_after_a_restart_and_a_snapshot(serve: Callable[..., LocalService]) -> None:
    service = serve(**HALF_LIFE)
    learn(service, "wilderness", "tent", at=days_ago(10), weight=3.0)
    learn(service, "wilderness", "lamp")
    assert service.post("/admin/snapshot", {"bundle": "s"}).status_code == 200
    assert service.post("/admin/reload", {"bundle": "s"}).status_code == 200
    assert weight(service, "wilderness", "tent") == pytest.approx(1.5, rel=0.01)


def test_nothing_decays_without_the_setting(serve: Callable[..., LocalService]) -> None:
    service = serve()
    learn(service, "wilderness", "tent", at=days_ago(2_000))
    assert weight(service, "wilderness", "tent") == pytest.approx(1.0)


def test_a_click_repeated_within_an_hour_is_not_logged(serve: Callable[..., LocalService]) -> None:
    service = serve(**HALF_LIFE)
    then = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
    first = learn(service, "wilderness", "tent", at=then.isoformat()).json()
    later = (then + timedelta(minutes=50)).isoformat()
    assert learn(service, "wilderness", "tent", at=later).json() == first
    next_hour = (then + timedelta(minutes=55)).isoformat()
    assert learn(service, "wilderness", "tent", at=next_hour).json() != first


@pytest.mark.parametrize("seconds", [3600, 86_400])
def test_a_click_without_time_is_the_newest_even_after_the_clock_was_set_back(
    serve: Callable[..., LocalService], monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    service, now = serve(**HALF_LIFE), times.now()
    monkeypatch.setattr(times, "now", lambda: now + seconds * times.SECOND)
    assert learn(service, "wilderness", "tent", weight=2.0).json()["version"] == 1
    monkeypatch.setattr(times, "now", lambda: now)
    rejected = {"negative": True, "weight": 3.0}
    assert learn(service, "wilderness", "tent", "lamp", **rejected).json()["version"] == 2
    assert learn(service, "wilderness", "tent", "lamp", **rejected).json()["version"] == 2
    clicked = service.get("/labels/tent").json()["clicked"]
    assert clicked["weights"] == {"wilderness": -3.0}


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("yesterday", "a date and time with a zone"),
        ("2026-03-04T05:06:07", "a date and time with a zone"),
        ("1969-12-31T23:59:59Z", "since 1970 that has passed"),
        ("2126-01-01T00:00:00Z", "since 1970 that has passed"),
        ("2" * 50, "more than 40 characters"),
        (1_700_000_000, "string"),
    ],
)
def test_wrong_times_are_refused(serve: Callable[..., LocalService], at: Any, said: str) -> None:
    answer = learn(serve(), "wilderness", "tent", at=at)
    assert_problem(answer, 422, field="instances.0.at")
    assert said in answer.text


def test_a_click_that_arrives_late_replaces_no_later_one(
    serve: Callable[..., LocalService],
) -> None:
    service = serve(**HALF_LIFE)
    learn(service, "wilderness", "tent", at=days_ago(10), weight=2.0)
    late = learn(service, "wilderness", "tent", at=days_ago(20), weight=9.0).json()
    assert (late["version"], late["accepted"]) == (1, 1)
    assert learn(service, "wilderness", "tent", at=days_ago(30), negative=True).json() == late
    assert weight(service, "wilderness", "tent") == pytest.approx(1.0, rel=0.01)
    counted = learn(service, "dusk", "tent", at=days_ago(10), clicks=1).json()["version"]
    assert learn(service, "dusk", "tent", at=days_ago(40), clicks=9).json()["version"] > counted
    assert weight(service, "dusk", "tent") == pytest.approx(0.5, rel=0.01)
