"""PATCH merges the given fields into a label, or into many; other fields stay unchanged."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import orjson
import pytest

from service.core.encoding.representer import Representer
from service.engine.encoder_pool import LabelEncoding
from service.http.label_stream import MergeAnswer
from service.http.labels import LabelsAnswer
from service.settings import Limits
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_problem
from tests.support.http.stream_lines import assert_stream_answer
from tests.support.serving import LocalService
from tests.support.tiny.bundles import LABELS

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


# Many at once --------------------------------------------------------------------------------


def patch_all(service: LocalService, *labels: dict[str, Any], key: str = "") -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return service.request("PATCH", "/labels", json={"labels": labels}, headers=headers)


def patch_lines(service: LocalService, *lines: Any) -> list[dict[str, Any]]:
    """Stream changes; return the answers, which must be as documented."""
    content = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    answer = service.request(
        "PATCH", "/labels", content=content, headers={"content-type": "application/x-ndjson"}
    )
    openapi = service.get("/openapi.json").json()
    return [dict(line) for line in assert_stream_answer(answer.content, openapi, method="patch")]


CHANGES: list[dict[str, Any]] = [
    {"id": "axe", "metadata": {"size": None, "stock": 3}},
    {"id": "tent", "text": "light tent", "metadata": {"stock": 0}, "boost": 2},
    {"id": "lamp", "expires_at": "2099-12-31T00:00:00Z"},
    {"id": "boots"},
]


def test_many_changes_are_merged_as_single_ones_are(service: LocalService, serve) -> None:
    """As one body, as a stream, and one by one: the same labels, also after a restart."""
    ids = [change["id"] for change in CHANGES]

    def left() -> list[dict[str, Any]]:
        labels = [service.get(f"/labels/{label_id}").json() for label_id in ids]
        return [{**label, "version": None} for label in labels]

    before = {label["id"]: label for label in left()}
    answer = patch_all(service, *CHANGES).json()
    assert_answer(answer, LabelsAnswer)
    assert [(one["id"], one["status"]) for one in answer["labels"]] == [
        *((label_id, "updated") for label_id in ids[:3]),
        ("boots", "unchanged"),
    ]
    found = left()
    assert found[0]["metadata"] == {"shop": "acme", "stock": 3}
    assert (found[1]["text"], found[1]["boost"]) == ("light tent", 2)
    assert found[3] == before["boots"]
    service = serve()
    assert left() == found
    texts = {label_id: before[label_id]["text"] for label_id in ("tent", "lamp")}
    restored = [AXE, *({"id": label_id, "text": text} for label_id, text in texts.items())]
    for one_by_one in (False, True):
        service.post("/labels", {"labels": restored})
        if one_by_one:
            for change in CHANGES:
                fields = {name: value for name, value in change.items() if name != "id"}
                assert patch(service, change["id"], **fields).status_code == 200
        else:
            answers = patch_lines(service, *CHANGES)
            assert [one["id"] for one in answers] == ids
            assert [one["line"] for one in answers] == [1, 2, 3, 4]
        assert left() == found


def test_changes_without_texts_encode_nothing(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_texts: Any) -> None:
        raise AssertionError("a text was encoded")

    monkeypatch.setattr(Representer, "encode", encode)
    monkeypatch.setattr(LabelEncoding, "encode", encode)
    changes = [
        {"id": label_id, "metadata": {"stock": stock}, "boost": 1 + stock}
        for stock, label_id in enumerate(("axe", *LABELS))
    ]
    version = service.get("/info").json()["version"]
    assert patch_all(service, *changes).json()["version"] == version + len(changes)
    lines = patch_lines(service, *({**change, "boost": 0.5} for change in changes))
    assert {line["status"] for line in lines} == {"updated"}
    assert patch(service, "axe", metadata={"stock": 7}).json()["status"] == "updated"


def test_a_body_is_merged_as_a_whole_or_not_at_all(service: LocalService) -> None:
    version = service.get("/info").json()["version"]
    wrong: list[tuple[list[dict[str, Any]], set[str]]] = [
        ([{"id": "axe", "boost": 2}, {"id": "nowhere", "boost": 2}], {"labels.1.id"}),
        ([{"id": "a"}, {"id": "b"}], {"labels.0.id", "labels.1.id"}),
        ([{"id": "axe", "queries": ["a", "b", "c", "d"]}], {"labels.0.queries"}),
        ([{"id": "axe", "metadata": dict.fromkeys("abc", 1)}], {"labels.0.metadata"}),
        ([{"id": "axe"}, {"id": "axe"}], {"labels"}),
        ([{"boost": 2}], {"labels.0.id"}),
        ([{"id": "axe", "expires_at": "2020-01-01T00:00:00Z"}], {"labels.0.expires_at"}),
        ([], {"labels"}),
    ]
    for changes, fields in wrong:
        answer = patch_all(service, *changes)
        assert_problem(answer, 422)
        assert {one["field"] for one in answer.json()["errors"]} == fields
    assert service.get("/info").json()["version"] == version


def test_a_wrong_line_leaves_the_others(service: LocalService) -> None:
    lines = patch_lines(
        service,
        {"id": "axe", "metadata": {"stock": 1}},
        {"id": "nowhere", "metadata": {"stock": 1}},
        {"id": "tent", "txt": "?"},
        {"id": "axe", "queries": ["a", "b", "c", "d"]},
        {"id": "axe", "metadata": {"stock": 2}},
        {"id": "new", "text": "new"},
    )
    errors = {line["line"]: line["error"] for line in lines if "error" in line}
    assert {line: error["status"] for line, error in errors.items()} == {
        2: 404, 3: 422, 4: 422, 6: 404,
    }  # fmt: skip
    assert errors[2]["detail"] == "no label has the id 'nowhere'"
    assert service.get("/labels/axe").json()["metadata"]["stock"] == 2


def test_a_key_of_changes_is_not_that_of_a_post_to_the_same_path(service: LocalService) -> None:
    """The bodies are equal, so only the methods tell the two requests apart."""
    labels = [{"id": "axe", "text": "ice axe"}]
    headers = {"Idempotency-Key": "k"}
    first = service.post("/labels", {"labels": labels}, headers=headers)
    assert first.status_code == 200
    assert_problem(patch_all(service, *labels, key="k"), 409)
    changed = patch_all(service, {"id": "axe", "boost": 3}, key="c").json()
    patch(service, "axe", boost=1)
    assert patch_all(service, {"id": "axe", "boost": 3}, key="c").json() == changed
    assert "boost" not in service.get("/labels/axe").json()
