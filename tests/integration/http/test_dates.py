"""Labels with dates over HTTP: in answers from `starts_at` on, and in none from `expires_at` on."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from service.http.labels import ShownLabelAnswer
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service

SOON = 4.0  # seconds


def at(seconds: float) -> str:
    """Return the time that many seconds from now."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def post(service: LocalService, *labels: dict[str, Any]) -> None:
    answer = service.post("/labels", {"labels": list(labels)})
    assert answer.status_code == 200, answer.text


def found(service: LocalService, **options: Any) -> set[str]:
    answer = service.post("/predict", {"queries": ["spring sale tent"], "top_k": 50, **options})
    return {keyword["id"] for keyword in answer.json()["results"][0]["keywords"]}


def wait_until(moment: str) -> None:
    time.sleep(max(0.0, datetime.fromisoformat(moment).timestamp() - time.time()))


def test_a_label_is_in_answers_between_its_dates(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    places = make_bundle(name="shop"), tmp_path / "state"
    with local_service(*places, bundles=tmp_path) as service:
        starts, ends = at(SOON), at(2 * SOON)
        sale = {"id": "sale", "text": "spring sale", "starts_at": starts, "expires_at": ends}
        post(service, sale, {"id": "always", "text": "sale", "starts_at": at(-9)})
        assert found(service) >= {"always", "tent"} and "sale" not in found(service)
        shown = service.get("/labels/sale").json()
        assert_answer(shown, ShownLabelAnswer)
        same = datetime.fromisoformat(shown["starts_at"]), datetime.fromisoformat(starts)
        assert abs(same[0] - same[1]) < timedelta(milliseconds=1)
        wait_until(starts)
        assert "sale" in found(service)
        assert service.post("/admin/snapshot", {"bundle": "next"}).status_code == 200
        assert service.post("/admin/reload", {"bundle": "next"}).status_code == 200
        wait_until(ends)
        assert "sale" not in found(service)
        assert service.get("/labels/sale").json()["expires_at"] == shown["expires_at"]
    with local_service(*places, bundles=tmp_path) as service:
        assert "sale" not in found(service) and "always" in found(service)
        extended = {"expires_at": at(3600)}
        assert service.request("PATCH", "/labels/sale", json=extended).status_code == 200
        assert "sale" in found(service)
        assert "sale" in found(service, filter={"none": [{"field": "price", "exists": True}]})


def test_a_merge_changes_and_removes_dates(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    with local_service(make_bundle(name="shop"), tmp_path / "state") as service:
        post(service, {"id": "a", "text": "spring sale", "starts_at": at(3600)})

        def merge(**given: Any) -> Any:
            return service.request("PATCH", "/labels/a", json=given)

        assert "a" not in found(service)
        assert merge(metadata={"price": 3}).status_code == 200
        assert "a" not in found(service)  # a date that is left out stays
        assert_problem(merge(expires_at=at(60)), 422, field="expires_at")  # before it starts
        assert merge(starts_at=None, expires_at=at(60)).json()["status"] == "updated"
        assert "a" in found(service)
        assert "starts_at" not in service.get("/labels/a").json()
        assert merge(expires_at=None).json()["status"] == "updated"
        assert merge(expires_at=None).json()["status"] == "unchanged"
        assert "expires_at" not in service.get("/labels/a").json()


def test_the_last_moment_of_a_date_is_listed_as_sent(service: LocalService) -> None:
    last, rule = "9999-12-31T23:59:59.999999Z", {"id": "r", "then": {"hide": ["a"]}}
    post(service, {"id": "a", "text": "a", "starts_at": "0001-01-01T00:00:00Z", "expires_at": last})
    assert service.post("/rules", {"rules": [{**rule, "expires_at": last}]}).status_code == 200
    [label] = service.get("/labels").json()["labels"]
    assert (label["starts_at"], label["expires_at"]) == ("0001-01-01T00:00:00Z", last)
    [listed] = service.get("/rules").json()["rules"]
    assert listed["expires_at"] == last
    small = {"starts_at": "2096-12-01t08:00:00.5+08:00", "expires_at": "2097-01-01t00:00:00z"}
    assert service.request("PATCH", "/labels/a", json=small).status_code == 200
    shown = service.get("/labels/a").json()
    assert shown["starts_at"] == "2096-12-01T00:00:00.500000Z"
    assert shown["expires_at"] == "2097-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("dates", "field"),
    [
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"starts_at": "2020-01-01T00:00:00"}, "starts_at"),
        ({"starts_at": "next week"}, "starts_at"),
        ({"starts_at": 1_800_000_000}, "starts_at"),
        ({"starts_at": "9" * 41}, "starts_at"),
        ({"starts_at": "0001-01-01T00:00:00+05:00"}, "starts_at"),
        ({"starts_at": "2096-W49-2T00:00:00Z"}, "starts_at"),
        ({"starts_at": "20961201T000000Z"}, "starts_at"),
        ({"starts_at": "2096-12-01T00:00:00+01:00:30"}, "starts_at"),
        ({"starts_at": "9999-12-31T23:59:59-05:00"}, "starts_at"),
        ({"starts_at": "9999-01-01T00:00:00Z", "expires_at": "9998-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_a_wrong_date_is_refused(reader: LocalService, dates: dict[str, Any], field: str) -> None:
    answer = reader.post("/labels", {"labels": [{"text": "a", **dates}]})
    assert assert_problem(answer, 422)["errors"][0]["field"] == f"labels.0.{field}"
    if dates.get("expires_at") != "9998-01-01T00:00:00Z":
        answer = reader.request("PATCH", "/labels/tent", json=dates)
        assert assert_problem(answer, 422)["errors"][0]["field"] == field


def test_a_repeated_write_gets_its_answer_after_its_date_has_passed(service: LocalService) -> None:
    ends = at(SOON)
    writes = (
        ("POST", "/labels", {"labels": [{"id": "flash", "text": "flash", "expires_at": ends}]}),
        ("PATCH", "/labels/lamp", {"expires_at": ends}),
        ("POST", "/rules", {"rules": [{"id": "flash", "then": {"hide": ["tent"]},
                                       "expires_at": ends}]}),
    )  # fmt: skip

    def send(number: int, key: str) -> Any:
        method, path, document = writes[number]
        return service.request(method, path, json=document, headers={"Idempotency-Key": key})

    answers = [send(number, f"key-{number}").json() for number in range(3)]
    version = service.get("/info").json()["version"]
    assert [answer["version"] for answer in answers] == [version - 2, version - 1, version]
    wait_until(ends)
    assert [send(number, f"key-{number}").json() for number in range(3)] == answers
    fields = ["labels.0.expires_at", "expires_at", "rules.0.expires_at"]
    for number, field in enumerate(fields):
        assert_problem(send(number, "another"), 422, field=field)
    assert service.get("/info").json()["version"] == version
