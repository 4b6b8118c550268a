"""Typed metadata and filters over HTTP, from the post on, after a restart and a reload."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.http.labels import LabelPage
from service.http.predictions import PredictAnswer
from service.settings import Limits
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service

SHOP = {
    "cheap": {"price": 10, "brand": "acme", "stock": True, "sizes": ["s", "m"]},
    "dear": {"price": 99.5, "brand": "acme", "stock": False, "sizes": ["l"]},
    "other": {"price": 10.0, "brand": "apex", "stock": True, "sizes": []},
    "text": {"price": "10", "brand": "true"},
}
CASES: tuple[tuple[dict[str, Any], set[str]], ...] = (
    ({"all": [{"field": "price", "eq": 10}]}, {"cheap", "other"}),
    ({"all": [{"field": "price", "eq": "10"}]}, {"text"}),
    ({"all": [{"field": "price", "gt": 10}]}, {"dear"}),
    ({"all": [{"field": "stock", "eq": True}]}, {"cheap", "other"}),
    ({"all": [{"field": "sizes", "in": ["m", "l"]}]}, {"cheap", "dear"}),
    ({"all": [{"field": "sizes", "exists": True}]}, {"cheap", "dear", "other"}),
    ({"all": [{"field": "brand", "exists": True}], "none": [{"field": "stock", "exists": True}]},
     {"text"}),
    ({"any": [{"field": "brand", "eq": "apex"}, {"all": [
        {"field": "brand", "eq": "acme"}, {"field": "stock", "eq": False}]}]}, {"dear", "other"}),
    ({"all": [{"field": "brand", "eq": "none such"}]}, set()),
)  # fmt: skip


def keywords(service: LocalService, query: str, **options: Any) -> list[dict[str, Any]]:
    answer = service.post("/predict", {"queries": [query], "top_k": 50, **options})
    assert answer.status_code == 200, answer.text
    assert_answer(answer.json(), PredictAnswer)
    [result] = answer.json()["results"]
    return result["keywords"]


def post_shop(service: LocalService) -> int:
    labels = [
        {"id": name, "text": f"{name} tent", "queries": ["shelter"], "metadata": metadata}
        for name, metadata in SHOP.items()
    ]
    answer = service.post("/labels", {"labels": labels})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def listed(service: LocalService, wanted: Any) -> Any:
    return service.get("/labels", params={"filter": orjson.dumps(wanted).decode()})


def assert_filtered(service: LocalService, version: int) -> None:
    for wanted, expected in CASES:
        found = keywords(service, "a tent", filter=wanted, min_version=version, explain=True)
        assert {one["id"] for one in found} == expected
        for one in found:
            assert one["metadata"] == SHOP[one["id"]]
            assert {row["text"] for row in one["evidence"]} <= {one["text"], "shelter"}
        assert len(keywords(service, "a tent", filter=wanted, top_k=1)) == min(1, len(expected))


def test_answers_have_the_labels_that_pass(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    places = make_bundle(name="shop"), tmp_path / "state"
    with local_service(*places, bundles=tmp_path) as service:
        version = post_shop(service)
        assert_filtered(service, version)
        for wanted, expected in CASES:
            page = listed(service, wanted).json()
            assert_answer(page, LabelPage)
            assert {label["id"] for label in page["labels"]} == expected
        assert service.get("/labels/cheap").json()["metadata"] == SHOP["cheap"]
        not_acme = {"none": [{"field": "brand", "eq": "acme"}]}
        found = {one["id"] for one in keywords(service, "a tent", filter=not_acme)}
        assert {"tent", "lamp", "other", "text"} <= found and not found & {"cheap", "dear"}
        assert service.post("/admin/snapshot", {"bundle": "next"}).status_code == 200
        assert service.post("/admin/reload", {"bundle": "next"}).status_code == 200
        assert_filtered(service, version)
    with local_service(*places, bundles=tmp_path) as service:
        assert_filtered(service, version)


def test_a_change_of_metadata_counts_at_once(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    with local_service(make_bundle(name="shop"), tmp_path / "state") as service:
        post_shop(service)
        cheap = {"all": [{"field": "price", "lt": 50}]}

        def found() -> set[str]:
            return {one["id"] for one in keywords(service, "a tent", filter=cheap)}

        assert found() == {"cheap", "other"}
        path, body = "/labels/dear", {"metadata": {"price": 5}}
        assert service.request("PATCH", path, json=body).status_code == 200
        assert found() == {"cheap", "dear", "other"}
        tent = {"id": "tent", "text": "camping tent", "metadata": {"price": 7}}  # of the bundle
        assert service.post("/labels", {"labels": [tent]}).status_code == 200
        assert found() == {"cheap", "dear", "other", "tent"}
        same = service.post("/labels", {"labels": [tent]}).json()["labels"][0]["status"]
        assert same == "unchanged"
        for value, status in ((7.0, "updated"), (True, "updated"), (1, "updated")):
            changed = {**tent, "metadata": {"price": value}}
            [label] = service.post("/labels", {"labels": [changed]}).json()["labels"]
            assert label["status"] == status
            assert ("tent" in found()) == (value is not True)
        assert service.request("DELETE", "/labels/cheap").status_code == 200
        assert found() == {"dear", "other", "tent"}


def test_a_field_that_no_label_has_is_named(reader: LocalService) -> None:
    wanted = {"any": [{"field": "colour", "eq": "red"}, {"field": "hue", "exists": True}]}
    warnings = [f"filter: no label has the field '{name}'" for name in ("colour", "hue")]
    for top_k, explain in ((5, False), (1000, True)):  # as objects, and serialized in threads
        body = {"queries": ["tent"], "filter": wanted, "top_k": top_k, "explain": explain}
        answer = reader.post("/predict", body).json()
        assert_answer(answer, PredictAnswer)
        assert answer["results"][0]["keywords"] == []
        assert answer["warnings"] == warnings
    assert "warnings" not in reader.post("/predict", {"queries": ["tent"]}).json()


def test_a_condition_that_no_value_can_meet_is_named(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    with local_service(make_bundle(name="shop"), tmp_path / "state") as service:

        def post(*prices: Any) -> None:
            labels = [
                {"id": str(place), "text": f"torch {place}", "metadata": {"price": price}}
                for place, price in enumerate(prices)
            ]
            assert service.post("/labels", {"labels": labels}).status_code == 200

        post("29.90", "n/a")
        wanted = {"all": [{"field": "price", "lt": 100}]}
        warnings = ["filter: no label has a number as 'price', so `lt` never holds"]
        asked = {"queries": ["torch"], "filter": wanted}
        assert service.post("/predict", asked).json()["warnings"] == warnings
        page = listed(service, wanted).json()
        assert_answer(page, LabelPage)
        assert (page["labels"], page["warnings"]) == ([], warnings)
        post(29.90)
        assert "warnings" not in service.post("/predict", asked).json()
        assert "warnings" not in listed(service, wanted).json()


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ("price", "filter"),
        ({}, "filter"),
        ({"all": []}, "filter.all"),
        ({"all": [{"field": "price", "lt": "3"}]}, "filter.all.0.lt"),
        ({"all": [{"field": "price", "in": [1, "1"]}]}, "filter.all.0.in"),
        ({"any": [{"field": "price", "between": [1, 2]}]}, "filter.any.0"),
        ({"any": [{"field": "price", "in": list(range(1_001))}]}, "filter.any.0"),
    ],
)
def test_a_wrong_filter_is_refused(reader: LocalService, wanted: object, field: str) -> None:
    answer = reader.post("/predict", {"queries": ["tent"], "filter": wanted})
    assert assert_problem(answer, 422)["errors"][0]["field"] == field
    if isinstance(wanted, dict):
        assert assert_problem(listed(reader, wanted), 422)["errors"][0]["field"] == field


def test_a_filter_in_a_url_must_be_json(reader: LocalService) -> None:
    answer = reader.get("/labels", params={"filter": "{all"})
    assert assert_problem(answer, 422)["errors"][0]["field"] == "filter"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (None, "labels.0.metadata.a"),
        ({"b": 1}, "labels.0.metadata.a"),
        ([1], "labels.0.metadata.a"),
        (["x"] * 65, "labels.0.metadata.a"),
        (["x" * 1_025], "labels.0.metadata.a"),
        (2**53 + 1, "labels.0.metadata.a"),
    ],
)
def test_another_value_is_refused(reader: LocalService, value: object, path: str) -> None:
    body = {"labels": [{"text": "a", "metadata": {"a": value}}]}
    answer = reader.post("/labels", body)
    assert assert_problem(answer, 422)["errors"][0]["field"] == path


def test_all_lists_share_one_limit(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    limits = Limits(metadata_entries=3)
    with local_service(make_bundle(name="shop"), tmp_path / "state", limits=limits) as service:
        lists = {"a": ["x", "y"], "b": ["z"]}
        label = {"id": "a", "text": "a", "metadata": lists}
        assert service.post("/labels", {"labels": [label]}).status_code == 200
        label["metadata"] = {**lists, "b": ["z", "z"]}
        answer = service.post("/labels", {"labels": [label]})
        assert assert_problem(answer, 422)["errors"][0]["field"] == "labels.0.metadata"
        answer = service.request("PATCH", "/labels/a", json={"metadata": {"c": ["w"]}})
        assert assert_problem(answer, 422)["errors"][0]["field"] == "metadata"
