"""Wrong input: each kind of mistake has its own status, and the answer names the field."""

import json
from typing import Any

import pytest

from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import LocalService

JSON = {"content-type": "application/json"}
TENT = {"queries": ["tent"]}


def one(**label: Any) -> dict[str, Any]:
    return {"labels": [label]}


def item(**item: Any) -> dict[str, Any]:
    return {"items": [item]}


def click(**click: Any) -> dict[str, Any]:
    return {"instances": [{"query": "q", "labels": ["lamp"]}, {"query": "q"} | click]}


PREDICT_FIELDS = [
    *(
        ({"queries": [wrong]}, "queries.0")
        for wrong in ("", "\x1c\x1f", "x" * 2049, "x" * 10_000, 1, None, ["tent"])
    ),
    ({"queries": ["tent", " \t\n"]}, "queries.1"),
    *(({"queries": wrong}, "queries") for wrong in ([], ["x"] * 257, "tent", None, {"0": "tent"})),
    ({}, "queries"),
    *((TENT | {"top_k": wrong}, "top_k") for wrong in (0, -1, 1001, "3", 3.5, 3.0, True, None)),
    *((TENT | {"memorization": wrong}, "memorization") for wrong in (-0.1, 1.1, "0.5", True, [])),
    *((TENT | {"depth": wrong}, "depth") for wrong in (0, 2001, "10", 1.5, False)),
    *((TENT | {"explain": wrong}, "explain") for wrong in (1, "true", None)),
    *((TENT | {"min_version": wrong}, "min_version") for wrong in (-1, 2**63, 2**64 - 1, "0")),
    *((TENT | {"deadline_ms": wrong}, "deadline_ms") for wrong in (0, 60_001, 10.5, "1")),
    *((TENT | {field: 10**30}, field) for field in ("top_k", "depth", "min_version")),
    *((TENT | {"items": wrong}, "items") for wrong in ("camp", ["camp"] * 17)),
    *((TENT | {"items": [wrong]}, "items.0") for wrong in (7, "\x1c", "x" * 2049)),
    (TENT | {"topk": 3}, "topk"),
    (TENT | {"": 3}, "body"),
    *((wrong, "body") for wrong in (None, [TENT], "tent", 3)),
]

LABELS_FIELDS = [
    ({}, "labels"),
    *(({"labels": wrong}, "labels") for wrong in ([], None, {"text": "a"})),
    ({"labels": [{"text": f"label {number}"} for number in range(1001)]}, "labels"),
    ({"labels": [{"text": "a"}], "label": 1}, "label"),
    ({"labels": ["a"]}, "labels.0"),
    (one(), "labels.0.text"),
    *((one(text=wrong), "labels.0.text") for wrong in ("", " \u3000", "\x1c", "x" * 2049, 7)),
    *((one(text="a", id=wrong), "labels.0.id") for wrong in ("", " ", 7, "x" * 2049)),
    *((one(text="a", queries=wrong), "labels.0.queries") for wrong in (["q"] * 101, "q")),
    (one(text="a", queries=["q", ""]), "labels.0.queries.1"),
    *(
        (one(text="a", metadata={"a": wrong}), "labels.0.metadata.a")
        for wrong in (None, {"b": "c"}, "x" * 1025)
    ),
    (one(text="a", metadata={str(number): "" for number in range(65)}), "labels.0.metadata"),
    (one(text="a", metadata=[["a", "b"]]), "labels.0.metadata"),
    (one(text="a", novel=True), "labels.0.novel"),
    ({"labels": [{"id": "x", "text": "a"}, {"id": "x", "text": "b"}]}, "labels"),
    ({"labels": [{"text": "Ice  axe"}, {"text": "ice AXE"}]}, "labels"),
    *((wrong, "body") for wrong in (None, [])),
]

ITEMS_FIELDS = [
    ({}, "items"),
    *(({"items": wrong}, "items") for wrong in ([], None)),
    ({"items": [{"text": f"item {number}"} for number in range(1001)]}, "items"),
    ({"items": ["camp"]}, "items.0"),
    (item(), "items.0.text"),
    *((item(text=wrong), "items.0.text") for wrong in (" \u3000", "x" * 2049, 7)),
    (item(text="a", id=""), "items.0.id"),
    (item(text="a", name="b"), "items.0.name"),
    (item(text="a") | {"item": 1}, "item"),
    ({"items": [{"text": "Web  A"}, {"text": "web a"}]}, "items"),
]

INSTANCES_FIELDS = [
    ({}, "instances"),
    (click(), "instances.1.labels"),
    (click(labels=[]), "instances.1.labels"),
    *(
        (click(labels=["lamp"], weight=wrong), "instances.1.weight")
        for wrong in (0, -0.0, -1, 1000.1, 1e308, 10**30, "2", True, None, [1])
    ),
    (click(labels=["lamp"]) | {"unknown": "ignore"}, "unknown"),
]

FIELDS = {
    "/predict": PREDICT_FIELDS,
    "/labels": LABELS_FIELDS,
    "/items": ITEMS_FIELDS,
    "/instances": INSTANCES_FIELDS,
}

NOT_JSON = {
    "empty": b"",
    "truncated": b'{"queries": ["te',
    "two documents": b'{"queries": ["a"]} {"queries": ["a"]}',
    "trailing comma": b'{"queries": ["a"],}',
    "single quotes": b"{'queries': ['a']}",
    "NaN": b'{"queries": ["a"], "memorization": NaN}',
    "Infinity": b'{"queries": ["a"], "memorization": Infinity}',
    "minus Infinity": b'{"queries": ["a"], "memorization": -Infinity}',
    "10,000 brackets": b"[" * 10_000,
    "10,000 closed brackets": b'{"queries": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "10,000 objects": b'{"a":' * 10_000,
    "invalid UTF-8": b'{"queries": ["\xff\xfe"]}',
    "overlong UTF-8": b'{"queries": ["\xc0\xaf"]}',
    "lone surrogate": b'{"queries": ["\\ud800"]}',
    "lone surrogate in a name": b'{"\\udfff": 1}',
    "surrogate in UTF-8": b'{"queries": ["\xed\xa0\x80"]}',
    "byte order mark": b'\xef\xbb\xbf{"queries": ["a"]}',
    "UTF-16": json.dumps(TENT).encode("utf-16"),
    "raw control character": b'{"queries": ["a\x00b"]}',
    "gzip": b"\x1f\x8b\x08\x00",
}


def names(case: object) -> str | None:
    return None if isinstance(case, str) else repr(case)[:50]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [(path, *case) for path, cases in FIELDS.items() for case in cases],
    ids=names,
)
def test_the_wrong_field_is_named_and_nothing_is_written(
    reader: LocalService, path: str, body: Any, field: str
) -> None:
    answer = reader.post(path, content=json.dumps(body), headers=JSON)
    assert_no_internals(answer)
    assert_problem(answer, 422, field=field)
    assert reader.get("/labels").json() == {"version": 0, "labels": [], "next": None}


@pytest.mark.parametrize("path", ["/predict", "/labels"])
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_a_400(reader: LocalService, path: str, body: bytes) -> None:
    answer = reader.post(path, content=body, headers=JSON)
    assert_no_internals(answer)
    assert_problem(answer, 400)


def test_nesting_that_the_parser_still_takes_is_a_422(reader: LocalService) -> None:
    body = b'{"queries": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    assert_problem(reader.post("/predict", content=body, headers=JSON), 422, field="queries.0")


@pytest.mark.parametrize(
    "content_type",
    [
        None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
        "application/jsonx", "application/vnd.api+json", "application/json; charset=latin-1",
        "application/json; charset=utf-16", "*/*", ";",
    ],
)  # fmt: skip
def test_another_content_type_is_a_415(reader: LocalService, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    for path in ("/predict", "/labels", "/admin/snapshot"):
        for content in (json.dumps(TENT), ""):  # also of a body that may be empty
            assert_problem(reader.post(path, content=content, headers=headers), 415)


@pytest.mark.parametrize(
    "content_type",
    ["Application/JSON", "application/json;charset=UTF-8", 'application/json; charset="utf-8"'],
)
def test_json_may_be_announced_in_many_ways(reader: LocalService, content_type: str) -> None:
    headers = {"content-type": content_type}
    assert reader.post("/predict", content=json.dumps(TENT), headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/predict", {"POST"}),
        ("PUT", "/predict", {"POST"}),
        ("PUT", "/labels", {"GET", "HEAD", "PATCH", "POST"}),
        ("POST", "/labels/tent", {"DELETE", "GET", "HEAD", "PATCH"}),
        ("DELETE", "/info", {"GET", "HEAD"}),
        ("POST", "/metrics", {"GET", "HEAD"}),
        ("POST", "/health/live", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_is_a_405(
    reader: LocalService, method: str, path: str, allowed: set[str]
) -> None:
    answer = reader.request(method, path)
    assert_problem(answer, 405)
    assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("path", ["/nope", "/predict/", "/predict/x", "//predict", "/health"])
def test_an_unknown_route_is_a_404(reader: LocalService, path: str) -> None:
    assert_problem(reader.get(f"http://service{path}"), 404)


def test_an_id_that_is_repeated_in_an_answer_is_cut(reader: LocalService) -> None:
    long = "x" * 2000
    refusals = [
        assert_problem(reader.get(f"/labels/{long}"), 404),
        assert_problem(reader.post("/labels", {"labels": [{"text": long}] * 2}), 422),
        assert_problem(
            reader.post("/instances", {"instances": [{"query": "q", "labels": [long]}]}), 422
        ),
    ]
    for problem in refusals:
        assert "x" * 100 in str(problem)
        assert "x" * 101 not in str(problem)
