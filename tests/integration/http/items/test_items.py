"""The routes under /items, restarts, and the refusal if the bundle has no item memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.core.prediction.answers import ResultAnswer
from service.settings import Limits
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.items import ITEMS

SLEEP = {"id": "sleep", "text": "somewhere to sleep"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("shelf") / "with-items", items=ITEMS)


@pytest.fixture
def with_items(bundle: Path, tmp_path: Path) -> Iterator[LocalService]:
    with local_service(bundle, tmp_path / "state") as service:
        yield service


def ids(service: LocalService) -> list[str]:
    return [item["id"] for item in service.get("/items").json()["items"]]


def test_items_are_posted_listed_and_deleted(with_items: LocalService) -> None:
    answer = with_items.post("/items", {"items": [SLEEP, {"text": "Web  App"}]}).json()
    assert [item["id"] for item in answer["items"]] == ["sleep", "web app"]
    assert {item["status"] for item in answer["items"]} == {"created"}
    assert ids(with_items) == ["camp", "feet", "light", "sleep", "water", "web app"]
    assert with_items.get("/items/sleep").json() == SLEEP
    again = with_items.post("/items", {"items": [SLEEP]}).json()
    assert again["items"][0]["status"] == "unchanged"
    assert with_items.request("DELETE", "/items/feet").status_code == 200
    assert "feet" not in ids(with_items)
    assert with_items.get("/info").json()["memory"]["items"] == 5
    assert_problem(with_items.get("/items/feet"), 404)
    assert_problem(with_items.request("DELETE", "/items/feet"), 404)


def test_a_posted_item_changes_answers_at_once_and_after_a_restart(
    with_items: LocalService, bundle: Path, tmp_path: Path
) -> None:
    asked = {"queries": ["somewhere to sleep"], "top_k": 6}
    before = with_items.post("/predict", asked).json()["results"]
    with_items.post("/items", {"items": [SLEEP]})
    after = with_items.post("/predict", asked).json()["results"]
    assert before != after
    with_items.engine.close()
    with local_service(bundle, tmp_path / "state") as restarted:
        assert restarted.post("/predict", asked).json()["results"] == after


def test_a_request_may_name_items_by_id_or_text(with_items: LocalService) -> None:
    asked = {"queries": ["somewhere to sleep"], "top_k": 6}

    def answer(items: list[str] | None) -> object:
        return with_items.post("/predict", {**asked, "items": items}).json()["results"]

    predicted = with_items.post("/predict", asked).json()["results"]
    assert answer(None) == predicted
    with_items.post("/items", {"items": [SLEEP]})
    named = answer(["sleep"])
    assert named == answer(["  Somewhere  to SLEEP "]) == answer(["sleep", "somewhere to sleep"])
    assert named != answer(["feet"])
    assert answer([]) != named


def test_evidence_names_the_items_of_each_query(with_items: LocalService) -> None:
    """Large answers name them as small ones do."""
    asked = {"queries": ["somewhere to sleep", "lamp light"], "explain": True, "top_k": 3}
    results = with_items.post("/predict", asked).json()["results"]
    for result in results:
        assert_answer(result, ResultAnswer)
        assert {item["kind"] for item in result["items"]} == {"predicted"}
    assert results[1]["items"][0]["id"] == "light"
    many = with_items.post("/predict", {**asked, "queries": ["lamp light"] * 100}).json()
    assert many["results"] == results[1:] * 100
    given = with_items.post("/predict", {**asked, "items": ["Water  drinks", "camp"]}).json()
    for result in given["results"]:
        assert [(item["kind"], item["id"]) for item in result["items"]] == [
            ("given", "water"),
            ("given", "camp"),
        ]
    none = with_items.post("/predict", {**asked, "items": []}).json()["results"]
    assert [result["items"] for result in none] == [[], []]


def test_items_count_for_the_size_of_an_answer(bundle: Path, tmp_path: Path) -> None:
    long = [{"id": f"long{number}", "text": f"{number} " + "é" * 2_000} for number in range(16)]
    limits = Limits(answer_bytes=40_000)
    with local_service(bundle, tmp_path / "state", limits=limits) as service:
        service.post("/items", {"items": long})
        names = [item["id"] for item in long]
        asked = {"queries": ["tent"], "top_k": 1, "items": names}
        assert service.post("/predict", asked).status_code == 200
        refused = service.post("/predict", {**asked, "explain": True})
        assert_problem(refused, 422, field="top_k")
        fewer = {**asked, "explain": True, "items": names[:8]}
        assert len(service.post("/predict", fewer).content) > 32_000


@pytest.mark.parametrize(
    ("items", "field", "said"),
    [
        (["camp", "unheard of"], "items.1", "no item has the id or text 'unheard of'"),
        (["x" * 2048], "items.0", f"no item has the id or text '{'x' * 100}…'"),
    ],
)
def test_unknown_items_of_a_request_are_named(
    items: list[str], field: str, said: str, with_items: LocalService
) -> None:
    answer = with_items.post("/predict", {"queries": ["tent"], "items": items})
    problem = assert_problem(answer, 422, field=field)
    assert said in problem["errors"][0]["message"]


def test_a_bundle_without_items_refuses_them(service: LocalService) -> None:
    for response in (
        service.post("/predict", {"queries": ["tent"], "items": ["sleep"]}),
        service.post("/items", {"items": [SLEEP]}),
        service.get("/items"),
        service.request("DELETE", "/items/sleep"),
    ):
        assert "no item memory" in response.text
        assert response.status_code == 422


def test_pages_of_items_follow_a_short_cursor(with_items: LocalService) -> None:
    long_ids = [{"id": "x" * 2048, "text": "1"}, {"id": "x" * 2047, "text": "2"}]
    new = [*long_ids, {"text": "\ufdfa" * 2048}]
    posted = with_items.post("/items", {"items": new}).json()["items"]
    expected = sorted([*(item["id"] for item in posted), *ITEMS])
    found, cursor = [], ""
    while cursor is not None:
        page = with_items.get("/items", params={"after": cursor, "limit": 1}).json()
        found += [item["id"] for item in page["items"]]
        cursor = page["next"]
        assert len(cursor or "") < 300
    assert found == expected
    assert_problem(with_items.get("/items?after=camp"), 422, field="after")
