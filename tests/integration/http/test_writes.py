"""Deleting labels, posting clicks, and repeating requests with an idempotency key."""

import gc
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from service.core.errors import UnknownLabels
from service.core.types import NewInstance
from service.engine.encoder_pool import LabelEncoding
from service.engine.writing import write_path
from service.engine.writing.operations import WriteJob
from service.http.instances import InstanceBody, InstancesAnswer
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService, wait_for

AXE = {"id": "axe", "text": "ice axe", "queries": ["glacier tool"]}


def put(service: LocalService, *labels: dict[str, Any], key: str = "") -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return service.post("/labels", {"labels": list(labels)}, headers=headers)


def delete(service: LocalService, label_id: str, key: str = "") -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return service.request("DELETE", f"/labels/{label_id}", headers=headers)


def click(service: LocalService, query: str, *labels: str, **more: Any) -> httpx.Response:
    instance = {"query": query, "labels": list(labels), **more}
    return service.post("/instances", {"instances": [instance]})


def found(service: LocalService, query: str) -> dict[str, dict[str, Any]]:
    asked = {"queries": [query], "top_k": 100, "depth": 100, "explain": True}
    [result] = service.post("/predict", asked).json()["results"]
    return {keyword["id"]: keyword for keyword in result["keywords"]}


# Deleting labels -------------------------------------------------------------------------


def test_a_deleted_label_is_gone_until_it_is_posted_again(service: LocalService) -> None:
    put(service, AXE)
    assert delete(service, "axe").json() == {"version": 2}
    assert_problem(service.get("/labels/axe"), 404)
    assert_problem(delete(service, "axe"), 404)
    assert "axe" not in found(service, "ice axe")
    assert service.get("/labels").json()["labels"] == []
    answer = put(service, AXE).json()
    assert (answer["version"], answer["labels"][0]["status"]) == (3, "created")
    assert found(service, "ice axe")["axe"]["text"] == "ice axe"


# Clicks ----------------------------------------------------------------------------------


def rows(service: LocalService, label_id: str) -> list[str]:
    return [row["text"] for row in found(service, "grainger")[label_id]["evidence"]]


def test_clicks_of_one_query_make_one_row_at_once(service: LocalService) -> None:
    for _ in range(2):
        assert click(service, "grainger", "lamp").json() == {"version": 1, "accepted": 1}
    first = found(service, "grainger")["lamp"]["evidence"][0]
    assert (first["kind"], first["text"]) == ("instance", "grainger")
    assert click(service, "grainger", "lamp", "tent").json()["version"] == 2
    for label_id in ("lamp", "tent"):
        assert rows(service, label_id).count("grainger") == 1


def test_only_clicks_of_known_labels_are_encoded(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[list[bool]] = []
    encode = LabelEncoding.encode

    async def noted(self: LabelEncoding, *given: Any) -> Any:
        needed.append(given[-1])
        return await encode(self, *given)

    monkeypatch.setattr(LabelEncoding, "encode", noted)
    clicks = [
        {"query": f"q{number}", "labels": ["tent" if number < 5 else "gone"]}
        for number in range(20)
    ]
    problem = assert_problem(service.post("/instances", {"instances": clicks}), 422)
    assert (len(problem["errors"]), needed) == (15, [])
    answer = service.post("/instances", {"instances": clicks, "unknown": "skip"}).json()
    assert (answer["accepted"], len(answer["left_out"])) == (5, 15)
    assert needed == [[True] * 5 + [False] * 15]


def test_clicks_of_labels_that_another_process_has_just_written_are_learned(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise UnknownLabels([("instances.0.labels.0", "this view is old")])

    monkeypatch.setattr(write_path, "require_labels", unknown)
    clicks = [{"query": f"q{number}", "labels": ["tent"]} for number in range(20)]
    answer = service.post("/instances", {"instances": clicks})
    assert answer.json()["accepted"] == 20


def test_a_click_votes_with_its_weight(service: LocalService) -> None:
    of_one = 0.0
    for weight in (1.0, 2.5, 1e-300, 1_000):
        assert click(service, "dusk", "lamp", weight=weight).json()["accepted"] == 1
        keyword = found(service, "dusk")["lamp"]
        weights = {row["text"]: row["weight"] for row in keyword["evidence"]}
        assert keyword["score"] == pytest.approx(sum(weights.values()))
        of_one = of_one or weights["dusk"]
        assert weights["dusk"] == pytest.approx(weight * of_one, abs=1e-30)


def test_the_last_weight_counts_and_is_shown(service: LocalService) -> None:
    assert click(service, "dusk", "lamp", weight=0.1).json()["version"] == 1
    assert click(service, "dusk", "lamp", weight=0.1).json()["version"] == 1  # nothing changed
    clicked = service.get("/labels/lamp").json()["clicked"]
    assert clicked == {"total": 1, "newest": ["dusk"], "weights": {"dusk": 0.1}}
    click(service, "dusk", "tent", weight=3)
    assert service.get("/labels/lamp").json()["clicked"] == clicked
    assert service.get("/labels/tent").json()["clicked"]["weights"] == {"dusk": 3.0}
    assert click(service, "dusk", "lamp").json()["version"] == 3
    assert service.get("/labels/lamp").json()["clicked"] == {"total": 1, "newest": ["dusk"]}


# Repeated requests -----------------------------------------------------------------------


def test_a_repeated_request_gets_the_first_answer(service: LocalService) -> None:
    first = put(service, AXE, key="k1").json()
    put(service, {**AXE, "text": "ice tool"})
    assert put(service, AXE, key="k1").json() == first
    assert service.get("/labels/axe").json()["text"] == "ice tool"  # the post was not repeated
    gone = delete(service, "axe", key="k2").json()
    assert delete(service, "axe", key="k2").json() == gone
    assert service.get("/info").json()["version"] == 3


def test_a_key_that_came_with_another_request_is_a_409(service: LocalService) -> None:
    put(service, AXE, key="k1")
    for change in ({"text": "ice tool"}, {"metadata": {"a": "b"}}):
        assert_problem(put(service, AXE | change, key="k1"), 409)
    assert_problem(delete(service, "axe", key="k1"), 409)
    assert service.get("/info").json()["version"] == 1


def test_a_key_for_another_label_is_refused(service: LocalService) -> None:
    others = ("a%09b", "a%0Ab", "ab%3Fc", "ab%23c")
    put(service, *({"id": unquote(label_id), "text": "odd"} for label_id in ("ab", *others)))
    assert delete(service, "ab", key="k1").json() == {"version": 6}
    for other in others:
        assert_problem(delete(service, other, key="k1"), 409)
        assert service.get(f"/labels/{other}").status_code == 200
    assert delete(service, "%61b", key="k1").json() == {"version": 6}


def test_a_refusal_does_not_use_up_a_key_which_survives_a_restart(
    serve: Callable[..., LocalService],
) -> None:
    service = serve()
    assert_problem(delete(service, "axe", key="k1"), 404)
    first = put(service, AXE, key="k1").json()
    assert first["version"] == 1
    service.engine.close()
    assert put(serve(), AXE, key="k1").json() == first


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 256, "\x7f"])
def test_a_bad_key_is_refused(reader: LocalService, key: str) -> None:
    headers = {"Idempotency-Key": os.fsencode(key)}
    answer = reader.post("/labels", {"labels": [AXE]}, headers=headers)
    assert_problem(answer, 422, field="Idempotency-Key")


# Labels that do not exist ----------------------------------------------------------------

GONE = [
    {"query": "dusk", "labels": ["lamp", "gone-1", "lamp", "gone-2"]},
    {"query": "good", "labels": ["tent"]},
    {"query": "lost", "labels": ["gone-1"], "weight": 2},
]
LEFT_OUT = [
    {"instance": 0, "labels": ["gone-1", "gone-2"]},
    {"instance": 2, "labels": ["gone-1"]},
]


def test_what_is_known_of_a_request_is_learned_and_the_rest_listed(
    serve: Callable[..., LocalService],
) -> None:
    service = serve()
    nothing = service.post("/instances", {"instances": GONE[2:], "unknown": "skip"}).json()
    left_out = [{"instance": 0, "labels": ["gone-1"]}]
    assert nothing == {"version": 0, "accepted": 0, "left_out": left_out}
    body = {"instances": GONE, "unknown": "skip"}
    answer = service.post("/instances", body).json()
    assert_answer(answer, InstancesAnswer)
    assert answer == {"version": 2, "accepted": 2, "left_out": LEFT_OUT}
    assert service.get("/labels/lamp").json()["clicked"]["newest"] == ["dusk"]
    before = found(service, "dusk")
    service.engine.close()
    service = serve()  # what was skipped is not in the log
    assert (found(service, "dusk"), service.get("/info").json()["version"]) == (before, 2)
    put(service, {"id": "gone-1", "text": "came back"})
    assert service.get("/labels/gone-1").json()["clicked"]["total"] == 0
    all_known = service.post("/instances", {"instances": GONE[1:2], "unknown": "skip"}).json()
    assert all_known == {"version": 3, "accepted": 1, "left_out": []}


def test_by_default_one_unknown_label_refuses_all(service: LocalService) -> None:
    for body in ({"instances": GONE}, {"instances": GONE, "unknown": "refuse"}):
        answer = service.post("/instances", body)
        problem = assert_problem(answer, 422, field="instances.0.labels.1")
        assert "gone-1" in problem["errors"][0]["message"]
        assert service.get("/info").json()["version"] == 0
    assert "left_out" not in service.post("/instances", {"instances": GONE[1:2]}).json()


def test_a_repeated_request_lists_what_was_left_out_the_first_time(service: LocalService) -> None:
    body, key = {"instances": GONE, "unknown": "skip"}, {"Idempotency-Key": "k"}
    first = service.post("/instances", body, headers=key).json()
    put(service, {"id": "gone-1", "text": "came back"}, {"id": "gone-2", "text": "too"})
    assert service.post("/instances", body, headers=key).json() == first
    refuse = {"instances": GONE, "unknown": "refuse"}
    assert_problem(service.post("/instances", refuse, headers=key), 409)


# Memory of refused requests --------------------------------------------------------------

KINDS = (InstanceBody, NewInstance, WriteJob)


@pytest.mark.parametrize("clicks", [1, 200], ids=["small", "large"])
def test_refused_clicks_are_freed_without_the_garbage_collector(
    service: LocalService, clicks: int
) -> None:
    """The collector stops all threads; for many large requests it takes a tenth of a second."""
    labels = [f"no label {number}" for number in range(20)]
    instances = [{"query": f"query {number}", "labels": labels} for number in range(clicks)]
    gc.collect()
    gc.disable()
    try:
        before = requests_in_memory()  # of other tests
        known = {id(thing) for thing in before}
        assert_problem(service.post("/instances", {"instances": instances}), 422)
        # Other threads may not have returned from their last call yet.
        wait_for(lambda: not [one for one in requests_in_memory() if id(one) not in known])
    finally:
        gc.enable()


def requests_in_memory() -> list[object]:
    """Return all requests in memory; `isinstance` would trigger lazy imports."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), KINDS)]
