"""PATCH /labels/{id} merges the given fields into the label; other fields stay unchanged."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from service.http.answers import MergeAnswer
from service.settings import Limits
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService

AXE = {
    "id": "axe",
    "text": "ice axe",
    "queries": ["glacier tool"],
    "metadata": {"shop": "acme", "size": "60"},
}


def patch(service: LocalService, label_id: str, *, key: str = "", **fields: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return service.request("PATCH", f"/labels/{label_id}", json=fields, headers=headers)


def shown(service: LocalService, label_id: str = "axe") -> dict[str, Any]:
    label = service.get(f"/labels/{label_id}").json()
    return {name: label[name] for name in AXE}


def rows(service: LocalService, query: str, label_id: str) -> set[tuple[str, str]]:
    """Return (kind, text) of each row that votes for a label."""
    asked = {"queries": [query], "top_k": 100, "depth": 100, "explain": True}
    [result] = service.post("/predict", asked).json()["results"]
    [label] = [one for one in result["keywords"] if one["id"] == label_id]
    return {(row["kind"], row["text"]) for row in label["evidence"]}


@pytest.fixture
def service(serve) -> LocalService:
    service = serve(limits=Limits(label_queries=4, metadata_entries=3, metadata_bytes=40))
    assert service.post("/labels", {"labels": [AXE]}).json()["version"] == 1
    return service


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (
            {"text": "ice tool", "queries": ["serac", "glacier tool", "serac"]},
            {"text": "ice tool", "queries": ["glacier tool", "serac"]},
        ),
        (
            {"metadata": {"size": None, "shop": "other", "hue": "red"}},
            {"metadata": {"shop": "other", "hue": "red"}},
        ),
    ],
)
def test_what_is_given_is_merged(
    service: LocalService, given: dict[str, Any], changed: dict[str, Any]
) -> None:
    answer = patch(service, "axe", **given)
    assert answer.json() == {"id": "axe", "status": "updated", "neighbours": [], "version": 2}
    assert_answer(answer.json(), MergeAnswer)
    label = {**AXE, **changed}
    assert shown(service) == label
    queries = {("instance", query) for query in label["queries"]}
    assert rows(service, "ice axe", "axe") == {("label", label["text"]), *queries}
    unchanged = patch(service, "axe", **given).json()
    assert (unchanged["status"], unchanged["version"]) == ("unchanged", 2)


def test_a_merge_that_changes_nothing_writes_nothing(service: LocalService) -> None:
    for given in ({}, {"text": None}, {"text": " ice axe "}, {"metadata": {"a": None}}):
        assert patch(service, "axe", **given).json()["status"] == "unchanged"
    assert service.get("/info").json()["version"] == 1


def test_a_merged_label_is_the_same_as_a_posted_one_and_survives_a_restart(
    service: LocalService, serve
) -> None:
    label = {**AXE, "text": "ice tool", "queries": ["glacier tool", "serac"]}
    patch(service, "axe", text="ice tool", queries=["serac"])
    asked = {"queries": ["ice tool", "serac"], "min_version": 2}
    merged = service.post("/predict", asked).json()["results"]
    posted = service.post("/labels", {"labels": [label]}).json()
    assert posted["labels"][0]["status"] == "unchanged"
    again = serve()
    assert shown(again) == label
    assert again.post("/predict", asked).json()["results"] == merged


def test_an_unknown_label_is_a_404(service: LocalService) -> None:
    assert_problem(patch(service, "nowhere", text="a"), 404)
    service.request("DELETE", "/labels/axe")
    assert_problem(patch(service, "axe", text="a"), 404)
    assert service.get("/info").json()["version"] == 2


def test_a_wrong_field_or_too_much_of_one_is_a_422(service: LocalService) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"text": ""}, "text"),
        ({"txt": "a"}, "txt"),
        ({"id": "axe"}, "id"),
        ({"queries": None}, "queries"),
        ({"queries": ["a", "b", "c", "d"]}, "queries"),
        ({"metadata": {"a": "1", "b": "2"}}, "metadata"),
        ({"metadata": {"shop": "x" * 31}}, "metadata"),
        ({"metadata": {"shop": [1]}}, "metadata.shop"),
    ]
    for given, field in wrong:
        assert_problem(patch(service, "axe", **given), 422, field=field)
    assert shown(service) == AXE


def test_a_label_beyond_lowered_limits_can_still_be_changed(service: LocalService, serve) -> None:
    strict = serve(limits=Limits(label_queries=0, metadata_entries=1, metadata_bytes=1))
    assert patch(strict, "axe", text="ice tool", metadata={"size": None}).status_code == 200
    assert shown(strict) == {**AXE, "text": "ice tool", "metadata": {"shop": "acme"}}


def test_an_idempotency_key_brings_the_first_answer_again(service: LocalService) -> None:
    first = patch(service, "axe", key="k", queries=["a", "b", "c"])
    service.post("/labels", {"labels": [{**AXE, "queries": ["d", "e"]}]})
    assert patch(service, "axe", key="k", queries=["a", "b", "c"]).json() == first.json()
    service.request("DELETE", "/labels/axe")
    assert patch(service, "axe", key="k", queries=["a", "b", "c"]).json() == first.json()
    assert_problem(patch(service, "axe", key="k", queries=["a"]), 409)
    assert_problem(patch(service, "axe", key="other", queries=["a"]), 404)


def test_merges_at_the_same_time_lose_nothing(serve) -> None:
    service = serve()
    queries = [f"query {number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda query: patch(service, "tent", queries=[query]), queries))
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(shown(service, "tent")["queries"]) == queries
