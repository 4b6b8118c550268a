"""Aliases over HTTP: a label is found by each of them, from its post on and after every restart."""

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from service.http.labels import LabelPage, ShownLabelAnswer
from service.http.request_body import NDJSON
from service.settings import Limits
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, local_service

AXE = {
    "id": "axe",
    "text": "ice axe",
    "aliases": ["AB-123-X", "Eispickel"],
    "queries": ["glacier tool"],
    "metadata": {},
}
SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    str.lower,
    lambda code: code.replace("-", ""),
    lambda code: code.replace("-", " ").lower(),
)


def put(service: LocalService, *labels: dict[str, Any]) -> list[str]:
    answer = service.post("/labels", {"labels": labels})
    assert answer.status_code == 200, answer.text
    return [label["status"] for label in answer.json()["labels"]]


def shown(service: LocalService) -> dict[str, Any]:
    label = service.get("/labels/axe").json()
    assert_answer(label, ShownLabelAnswer)
    return {name: label[name] for name in AXE if name in label}


def found(service: LocalService, query: str, **options: Any) -> dict[str, Any]:
    """Return the best keyword of a query."""
    answer = service.post("/predict", {"queries": [query], "explain": True, **options})
    [result] = answer.json()["results"]
    return result["keywords"][0]


def test_a_label_is_found_by_its_aliases_after_a_restart_and_a_snapshot(
    words_bundle: Path, tmp_path: Path
) -> None:
    chance = random.Random(0)
    drawn = {
        f"{''.join(chance.choices(string.ascii_uppercase, k=2))}-{chance.randrange(100, 1000)}-X"
        for _ in range(60)
    }
    codes = sorted(drawn)
    labels = [
        {"id": f"drill {place}", "text": f"drill number {place}", "aliases": [code]}
        for place, code in enumerate(codes)
    ]

    def assert_all_found(service: LocalService) -> None:
        assert shown(service) == AXE
        for place, code in enumerate(codes):
            asked = [spelling(code) for spelling in SPELLINGS]
            question = {"queries": asked, "top_k": 1, "explain": True, "deadline_ms": 60_000}
            answer = service.post("/predict", question)
            assert answer.status_code == 200, answer.text
            for result in answer.json()["results"]:
                [keyword] = result["keywords"]
                assert (keyword["id"], keyword["match"]) == (f"drill {place}", "exact")
                row = keyword["evidence"][0]
                assert (row["kind"], row["text"]) == ("alias", code)
        misspelled = service.post("/predict", {"queries": ["eispikel"], "spelling": "auto"}).json()
        [result] = misspelled["results"]
        assert result["searched"] == "eispickel"
        assert (result["keywords"][0]["id"], result["keywords"][0]["match"]) == ("axe", "exact")

    with local_service(words_bundle, tmp_path / "state", bundles=tmp_path) as service:
        put(service, AXE, *labels)
        assert_all_found(service)
    with local_service(words_bundle, tmp_path / "state", bundles=tmp_path) as service:
        assert_all_found(service)
        assert service.post("/admin/snapshot", {"bundle": "next"}).status_code == 200
        assert service.post("/admin/reload", {"bundle": "next"}).status_code == 200
        assert_all_found(service)
        assert put(service, AXE, *labels[:2]) == ["unchanged"] * 3
        assert put(service, {**AXE, "aliases": ["piolet"]}) == ["updated"]
        assert found(service, "AB-123-X", match=["broad"])["id"] != "axe"
        assert found(service, "piolet")["match"] == "exact"


def test_a_label_posted_without_aliases_has_none(service: LocalService) -> None:
    assert put(service, AXE) == ["created"]
    assert put(service, AXE) == ["unchanged"]
    without = {name: value for name, value in AXE.items() if name != "aliases"}
    assert put(service, without) == ["updated"]
    assert shown(service) == without
    evidence = found(service, "ice axe", top_k=1, depth=100)["evidence"]
    assert {row["text"] for row in evidence} == {"ice axe", "glacier tool"}
    assert put(service, {**without, "aliases": []}) == ["unchanged"]


def test_aliases_are_listed_searched_and_streamed(service: LocalService) -> None:
    line = orjson.dumps(AXE) + b"\n"
    answer = service.request("POST", "/labels", content=line, headers={"content-type": NDJSON})
    assert answer.json()["status"] == "created"
    for query in ("", "?text=123+x", "?text=eispickel"):
        page = service.get(f"/labels{query}").json()
        assert_answer(page, LabelPage)
        assert [label["aliases"] for label in page["labels"]] == [AXE["aliases"]]
    assert service.get("/labels?text=glacier").json()["labels"] == []


def test_an_alias_that_equals_another_text_is_left_out(service: LocalService) -> None:
    put(service, {**AXE, "aliases": ["ICE  axe", " a-1 ", "A-1", "b"]})
    assert shown(service)["aliases"] == ["a-1", "b"]
    answer = service.request("PATCH", "/labels/axe", json={"text": "B", "aliases": ["A-1", "c"]})
    assert answer.json()["status"] == "updated"
    assert (shown(service)["text"], shown(service)["aliases"]) == ("B", ["a-1", "c"])
    assert service.request("PATCH", "/labels/axe", json={}).json()["status"] == "unchanged"


def test_a_label_without_id_is_the_one_with_its_text_not_with_its_alias(
    service: LocalService,
) -> None:
    put(service, AXE)
    [label] = service.post("/labels", {"labels": [{"text": "eispickel"}]}).json()["labels"]
    assert (label["id"], label["status"]) == ("eispickel", "created")
    assert service.get("/labels/axe").json()["aliases"] == AXE["aliases"]


def test_unlearning_an_alias_changes_nothing(service: LocalService) -> None:
    put(service, AXE)
    pair = {"instances": [{"query": "AB-123-X", "labels": ["axe"]}], "trained": True}
    answer = service.request("DELETE", "/instances", json=pair).json()
    assert (answer["version"], shown(service)) == (1, AXE)


def test_wrong_aliases_are_a_422_that_names_the_field(serve: Callable[..., LocalService]) -> None:
    service = serve(limits=Limits(label_aliases=2, query_characters=20))
    put(service, {**AXE, "aliases": ["a"]})
    for aliases, field in (
        ("a", "aliases"),
        (None, "aliases"),
        (["a", "b", "c"], "aliases"),
        ([1], "aliases.0"),
        (["a", " "], "aliases.1"),
        (["x" * 21], "aliases.0"),
    ):
        posted = service.post("/labels", {"labels": [{"text": "x", "aliases": aliases}]})
        assert_problem(posted, 422, field=f"labels.0.{field}")
        merged = service.request("PATCH", "/labels/axe", json={"aliases": aliases})
        assert_problem(merged, 422, field=field)
    merged = service.request("PATCH", "/labels/axe", json={"aliases": ["b", "c"]})
    assert_problem(merged, 422, field="aliases")
    assert service.get("/info").json()["version"] == 1
