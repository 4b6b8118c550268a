"""Rules and boosts over HTTP: from the post on, after a restart, a snapshot and a reload."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.http.labels import ShownLabelAnswer
from service.http.predictions import PredictAnswer
from service.http.rules import RuleAnswer, RulePage, RulesAnswer
from service.settings import Limits
from tests.integration.http.test_dates import SOON, at, wait_until
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service

QUERY = "red tent"
HIDE = {"id": "hide", "when": {"query": "tent", "match": "phrase"}, "then": {"hide": ["tent"]}}


def post(service: LocalService, *rules: dict[str, Any], **headers: str) -> Any:
    return service.request("POST", "/rules", json={"rules": list(rules)}, headers=headers)


def post_labels(service: LocalService, *labels: dict[str, Any]) -> None:
    assert service.post("/labels", {"labels": list(labels)}).status_code == 200


def result(service: LocalService, query: str = QUERY, **options: Any) -> Any:
    answer = service.post("/predict", {"queries": [query], "top_k": 50, **options})
    assert answer.status_code == 200, answer.text
    assert_answer(answer.json(), PredictAnswer)
    return answer.json()["results"][0]


def ids(service: LocalService, query: str = QUERY, **options: Any) -> list[str]:
    return [keyword["id"] for keyword in result(service, query, **options)["keywords"]]


def test_rules_act_from_their_answer_on_and_survive_restart_snapshot_and_reload(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    places = make_bundle(name="shop"), tmp_path / "state"
    with local_service(*places, bundles=tmp_path) as service:
        plain = ids(service)
        assert "tent" in plain
        last = plain[-1]
        pin = {"id": "pin", "then": {"pin": [{"id": last, "position": 1}]}}
        answer = post(service, HIDE, pin)
        assert_answer(answer.json(), RulesAnswer)
        assert [rule["status"] for rule in answer.json()["rules"]] == ["created", "created"]
        steered = [last, *(one for one in plain if one not in ("tent", last))]
        assert ids(service, min_version=answer.json()["version"]) == steered
        assert result(service)["keywords"][0]["pinned"] is True
        explained = result(service, explain=True)
        assert explained["rules"] == ["hide", "pin"]
        assert explained["without_rules"] == plain
        assert "rules" not in result(service)
        again = post(service, HIDE).json()
        assert again["rules"] == [{"id": "hide", "status": "unchanged"}]
        assert service.post("/admin/snapshot", {"bundle": "next"}).status_code == 200
    with local_service(*places, bundles=tmp_path) as service:
        assert ids(service) == steered
        assert service.post("/admin/reload", {"bundle": "next"}).status_code == 200
        assert ids(service) == steered
        assert service.request("DELETE", "/rules/hide").status_code == 200
        assert "tent" in ids(service)
        updated = post(service, {**pin, "then": {"hide": [last]}}).json()
        assert updated["rules"][0]["status"] == "updated"
        assert ids(service) == plain[:-1]
    with local_service(tmp_path / "next", tmp_path / "state", bundles=tmp_path) as service:
        assert ids(service) == plain[:-1]


def test_rules_are_listed_and_shown_as_posted(service: LocalService) -> None:
    rules: list[dict[str, Any]] = [
        {
            "id": f"r/{number} ?",
            "when": {"query": "Tent", "match": "contains"},
            "filter": {"any": [{"field": "price", "lt": number}]},
            "then": {
                "hide": ["tent"],
                "boost": {"factor": 1.5, "filter": {"none": [{"field": "a", "exists": True}]}},
            },
            "starts_at": "2096-12-01T00:00:00Z",
            "expires_at": "2097-12-01T00:00:00.500000Z",
        }
        for number in range(3)
    ]
    assert post(service, *rules).status_code == 200
    shown = service.get("/rules/r%2F1%20%3F").json()
    assert_answer(shown, RuleAnswer)
    assert shown == rules[1]
    first = service.get("/rules", params={"limit": 2}).json()
    assert_answer(first, RulePage)
    rest = service.get("/rules", params={"after": first["next"]}).json()
    assert [*first["rules"], *rest["rules"]] == rules and rest["next"] is None
    assert_problem(service.get("/rules", params={"filter": "{}"}), 422)
    for rule in rules:
        path = f"/rules/{rule['id'].replace('/', '%2F').replace(' ?', '%20%3F')}"
        assert service.request("DELETE", path).status_code == 200
        assert_problem(service.request("DELETE", path), 404)
        assert_problem(service.get(path), 404)


def test_a_rule_acts_between_its_dates(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    with local_service(make_bundle(name="shop"), tmp_path / "state") as service:
        starts, ends = at(SOON), at(2 * SOON)
        dated = {**HIDE, "starts_at": starts, "expires_at": ends}
        assert post(service, dated).status_code == 200
        assert "tent" in ids(service)
        wait_until(starts)
        assert "tent" not in ids(service)
        wait_until(ends)
        assert "tent" in ids(service)


def test_a_label_is_ordered_by_its_boost(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    places = make_bundle(name="shop"), tmp_path / "state"
    with local_service(*places, bundles=tmp_path) as service:
        post_labels(service, {"id": "low", "text": "red", "metadata": {"bid": 2}})
        before = {one["id"]: one["score"] for one in result(service)["keywords"]}
        post_labels(service, {"id": "low", "text": "red", "metadata": {"bid": 2}, "boost": 900})
        keywords = result(service)["keywords"]
        assert keywords[0]["id"] == "low" and keywords[0]["boost"] == 900
        assert {one["id"]: one["score"] for one in keywords} == pytest.approx(before, abs=1e-9)
        assert all("boost" not in one for one in keywords[1:])
        assert_answer(service.get("/labels/low").json(), ShownLabelAnswer)
        assert service.post("/admin/snapshot", {"bundle": "next"}).status_code == 200
        assert service.post("/admin/reload", {"bundle": "next"}).status_code == 200
        assert service.get("/labels/low").json()["boost"] == 900
        assert ids(service)[0] == "low"

        def merge(**given: Any) -> Any:
            return service.request("PATCH", "/labels/low", json=given)

        assert merge(metadata={"bid": 3}).json()["status"] == "updated"
        assert service.get("/labels/low").json()["boost"] == 900
        assert merge(boost=1.2).json()["status"] == "updated"
        boosts = {one["id"]: one.get("boost") for one in result(service)["keywords"]}
        assert boosts["low"] == 1.2
        assert merge(boost=0.001).json()["status"] == "updated"
        assert ids(service)[-1] == "low"
        assert merge(boost=1).json()["status"] == "updated"
        assert "boost" not in service.get("/labels/low").json()
        for wrong in (0, -1, 1e9, "2"):
            assert_problem(merge(boost=wrong), 422, field="boost")
    with local_service(*places, bundles=tmp_path) as service:
        assert "boost" not in service.get("/labels/low").json()


def test_a_pin_obeys_the_filter_of_the_request(service: LocalService) -> None:
    pin = {"id": "pin", "then": {"pin": [{"id": "tent", "position": 1}]}}
    assert post(service, pin).status_code == 200
    assert ids(service, "lamp")[0] == "tent"
    assert ids(service, "lamp", filter={"all": [{"field": "price", "exists": True}]}) == []
    assert service.request("DELETE", "/rules/pin").status_code == 200


def test_a_repeated_write_has_no_effect(service: LocalService) -> None:
    first = post(service, HIDE, **{"Idempotency-Key": "k"})
    second = post(service, HIDE, **{"Idempotency-Key": "k"})
    assert first.json() == second.json()
    other = {**HIDE, "then": {"hide": ["lamp"]}}
    assert_problem(post(service, other, **{"Idempotency-Key": "k"}), 409)
    assert service.request("DELETE", "/rules/hide").status_code == 200


def test_a_rule_stays_without_its_label_and_acts_on_it_again(service: LocalService) -> None:
    post_labels(service, {"id": "gone", "text": "red tent"})
    pin = {"id": "r", "then": {"pin": [{"id": "gone", "position": 1}]}}
    assert post(service, pin).status_code == 200
    assert service.request("DELETE", "/labels/gone").status_code == 200
    assert "gone" not in ids(service)
    assert post(service, pin).json()["rules"] == [{"id": "r", "status": "unchanged"}]
    hide = {"id": "s", "then": {"hide": ["gone"]}}
    assert_problem(post(service, hide), 422, field="rules.0.then.hide.0")
    post_labels(service, {"id": "gone", "text": "lamp"})
    assert ids(service)[0] == "gone"


PIN = {"id": "tent", "position": 1}


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"id": "r"}, ""),
        ({"id": "r", "then": {}}, ""),
        ({"then": {"hide": ["tent"]}}, ".id"),
        ({"id": "r", "then": {"hide": []}}, ".then.hide"),
        ({"id": "r", "then": {"hide": ["none such"]}}, ".then.hide.0"),
        ({"id": "r", "then": {"pin": [{"id": "none such", "position": 1}]}}, ".then.pin.0.id"),
        ({"id": "r", "then": {"pin": [{"id": "tent", "position": 0}]}}, ".then.pin.0.position"),
        ({"id": "r", "then": {"pin": [{"id": "tent", "position": 1001}]}}, ".then.pin.0.position"),
        ({"id": "r", "then": {"pin": [PIN, PIN]}}, ""),
        ({"id": "r", "then": {"pin": [PIN, {"id": "lamp", "position": 1}]}}, ""),
        ({"id": "r", "then": {"pin": [PIN], "hide": ["tent"]}}, ""),
        ({"id": "r", "then": {"boost": {"factor": 2}}}, ""),
        ({"id": "r", "then": {"boost": {"factor": 2, "labels": ["tent"], "filter": {}}}}, ""),
        ({"id": "r", "then": {"boost": {"factor": 0, "labels": ["tent"]}}}, ".then.boost.factor"),
        ({"id": "r", "then": {"boost": {"factor": 2, "labels": ["x"]}}}, ".then.boost.labels.0"),
        ({"id": "r", "then": {"boost": {"factor": 2, "filter": {"all": [{"field": "a", "x": 1}]}}}},
         ".then.boost.filter.all.0"),
        ({"id": "r", "filter": {"all": []}}, ".filter.all"),
        ({"id": "r", "then": {"show": ["tent"]}}, ".then.show"),
        ({**HIDE, "when": {"query": "!!", "match": "exact"}}, ".when.query"),
        ({**HIDE, "when": {"query": "x", "match": "like"}}, ".when.match"),
        ({**HIDE, "when": {"query": "x"}}, ".when.match"),
        ({**HIDE, "expires_at": "2020-01-01T00:00:00Z"}, ".expires_at"),
        ({**HIDE, "starts_at": "soon"}, ".starts_at"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_refused_and_nothing_is_written(
    reader: LocalService, rule: dict[str, Any], field: str
) -> None:
    version = reader.get("/info").json()["version"]
    fine = {"id": "fine", "then": {"hide": ["tent"]}}
    errors = assert_problem(post(reader, fine, rule), 422)["errors"]
    assert errors[0]["field"] == f"rules.1{field}"
    assert reader.get("/info").json()["version"] == version
    assert_problem(post(reader, HIDE, HIDE), 422, field="rules")


def test_limits_of_rules_hold(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    limits = Limits(rules=2, rule_labels=1, filter_values=2)
    with local_service(make_bundle(name="shop"), tmp_path / "state", limits=limits) as service:
        many = [{**HIDE, "id": f"{number}"} for number in range(3)]
        assert_problem(post(service, *many), 422, field="rules")
        named = {"id": "r", "then": {"hide": ["tent", "lamp"]}}
        assert_problem(post(service, named), 422, field="rules.0.then.hide")
        long = {"id": "r", "filter": {"all": [{"field": "a", "in": ["1", "2", "3"]}]}}
        assert_problem(post(service, long), 422, field="rules.0.filter.all.0")


def test_rules_that_would_cost_a_query_too_much_are_refused(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    with local_service(make_bundle(), tmp_path / "state", rule_work=60) as service:
        labels = [{"id": f"l{number}", "text": f"lamp {number}"} for number in range(61)]
        post_labels(service, *labels)
        pins = [{"id": one["id"], "position": place} for place, one in enumerate(labels, 1)]
        condition = {"field": "price", "lt": 3}
        boost = {"filter": {"any": [condition, condition, condition]}, "factor": 2.0}
        for when in ({}, {"when": {"query": "red", "match": "contains"}}):
            for then in ({"pin": pins}, {"boost": boost}):
                refused = post(service, {"id": "fits", **when}, {"id": "r", **when, "then": then})
                problem = assert_problem(refused, 422)
                assert problem["errors"][0]["field"].startswith("rules.")
        assert post(service, {"id": "r", "then": {"pin": pins[:60]}}).status_code == 200
        refused = post(service, {"id": "s", "then": {"hide": ["l60"]}})
        [error] = assert_problem(refused, 422)["errors"]
        assert error["field"] == "rules.0" and "rule_work" in error["message"]
        assert service.request("DELETE", "/rules/r").status_code == 200
        assert post(service, {"id": "s", "then": {"hide": ["l60"]}}).status_code == 200
