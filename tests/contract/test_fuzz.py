"""Any input is answered as documented, never with HTML or a 5xx that means a defect.

503, 504 and 507 are allowed: they tell the client to try again later.
"""

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from service.http.answers import (
    BundleAnswer,
    InstancesAnswer,
    LabelPage,
    LabelsAnswer,
    MergeAnswer,
    PredictAnswer,
    ShownLabelAnswer,
)
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import LocalService

ANSWERS = {
    "/predict": PredictAnswer,
    "/labels": LabelsAnswer,
    "/instances": InstancesAnswer,
    "/admin/reload": BundleAnswer,
}
JSON = {"content-type": "application/json"}

fuzz = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

texts = st.text(max_size=30)
numbers = st.one_of(
    st.integers(), st.integers(-2, 3000), st.floats(), st.sampled_from([2**63, 2**64, 10**400])
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
predict_bodies = st.fixed_dictionaries(
    {"queries": st.lists(texts, min_size=1, max_size=4)},
    optional={
        "top_k": st.integers(1, 1000),
        "memorization": st.floats(0, 1),
        "depth": st.integers(1, 2000),
        "explain": st.booleans(),
        "min_version": st.just(0),
        "deadline_ms": st.integers(1, 60_000),
    },
)
label_bodies = st.fixed_dictionaries(
    {
        "labels": st.lists(
            st.fixed_dictionaries(
                {"text": texts},
                optional={
                    "id": texts,
                    "queries": st.lists(texts, max_size=2),
                    "metadata": st.dictionaries(texts, texts, max_size=2),
                },
            ),
            min_size=1,
            max_size=3,
        )
    }
)

merge_bodies = st.fixed_dictionaries(
    {"text": texts},
    optional={
        "queries": st.lists(texts, max_size=2),
        "metadata": st.dictionaries(texts, st.none() | texts, max_size=2),
    },
)

instances = st.fixed_dictionaries(
    {"query": texts, "labels": st.lists(texts | st.just("tent"), min_size=1, max_size=3)},
    optional={"weight": st.floats(0, 1_000)},
)
instance_bodies = st.fixed_dictionaries(
    {"instances": st.lists(instances, min_size=1, max_size=3)},
)
names = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True) | st.sampled_from(
    ["tiny", "../tiny"]
)
snapshot_bodies = st.fixed_dictionaries({}, optional={"bundle": names | texts | st.none()})
reload_bodies = st.fixed_dictionaries(
    {"bundle": names | texts}, optional={"other_data": st.booleans() | texts}
)


@st.composite
def mutated(draw: st.DrawFn, bodies: st.SearchStrategy[Any]) -> Any:
    """A valid body in which one value is replaced, dropped, doubled or renamed."""
    body = draw(bodies)
    parent: Any = body
    for _ in range(draw(st.integers(0, 2))):
        inner = [one for one in children(parent) if isinstance(one, dict | list) and one]
        if inner:
            parent = draw(st.sampled_from(inner))
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    assume(keys)
    key = draw(st.sampled_from(keys))
    change = draw(st.sampled_from(["replace", "drop", "double", "add"]))
    if change == "replace":
        parent[key] = draw(documents)
    elif change == "drop":
        del parent[key]
    elif isinstance(parent, list):
        parent.append(parent[key] if change == "double" else draw(documents))
    else:
        name = f"{key}{key}" if change == "double" else draw(texts)
        parent[name] = draw(documents)
    return body


def children(parent: Any) -> list[Any]:
    return list(parent.values()) if isinstance(parent, dict) else list(parent)


def assert_as_documented(answer: httpx.Response, model: Any) -> None:
    if answer.status_code == 200:
        assert_answer(answer.json(), model)
        return
    assert 400 <= answer.status_code < 500 or answer.status_code in (503, 504, 507)
    assert_problem(answer, answer.status_code)
    assert_no_internals(answer)


@fuzz
@given(body=predict_bodies | mutated(predict_bodies) | documents)
def test_predict_answers_any_json(service: LocalService, body: Any) -> None:
    answer = service.post("/predict", content=json.dumps(body), headers=JSON)
    assert_as_documented(answer, PredictAnswer)
    if answer.status_code == 200:
        found = [result["query"] for result in answer.json()["results"]]
        assert len(found) == len(body["queries"])
        assert all(query in given for query, given in zip(found, body["queries"], strict=True))


@fuzz
@given(body=label_bodies | mutated(label_bodies) | documents)
def test_labels_answers_any_json(service: LocalService, body: Any) -> None:
    answer = service.post("/labels", content=json.dumps(body), headers=JSON)
    assert_as_documented(answer, LabelsAnswer)
    if answer.status_code == 200:
        for label in answer.json()["labels"]:
            # Clients resolve "." and ".." in a path before they send it.
            assume(label["id"] not in (".", ".."))
            shown = service.get(f"/labels/{quote(label['id'], safe='')}")
            assert shown.status_code == 200, label
            assert_as_documented(shown, ShownLabelAnswer)


@fuzz
@given(body=merge_bodies | mutated(merge_bodies) | documents)
def test_merges_answer_any_json(service: LocalService, body: Any) -> None:
    content = json.dumps(body)
    answer = service.request("PATCH", "/labels/tent", content=content, headers=JSON)
    assert_as_documented(answer, MergeAnswer)


@fuzz
@given(body=instance_bodies | mutated(instance_bodies) | documents)
def test_instances_answers_any_json(service: LocalService, body: Any) -> None:
    answer = service.post("/instances", content=json.dumps(body), headers=JSON)
    assert_as_documented(answer, InstancesAnswer)
    if answer.status_code == 200:
        assert answer.json()["accepted"] <= len(body["instances"])


@fuzz
@given(body=snapshot_bodies | mutated(snapshot_bodies) | documents)
def test_snapshots_answer_any_json(
    service: LocalService, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    # Skip the child process, which would write for seconds; everything before it is real.
    monkeypatch.setattr(service.engine._admin._child, "run", lambda _command, **_how: None)
    answer = service.post("/admin/snapshot", content=json.dumps(body), headers=JSON)
    assert_as_documented(answer, BundleAnswer)
    assert service.request("DELETE", "/admin/snapshot").json() == {"bundle": None}


@fuzz
@given(body=reload_bodies | mutated(reload_bodies) | documents)
def test_reloads_answer_any_json(service: LocalService, body: Any) -> None:
    answer = service.post("/admin/reload", content=json.dumps(body), headers=JSON)
    assert_as_documented(answer, BundleAnswer)
    assert answer.status_code != 200 or answer.json()["bundle"] == "tiny"


@fuzz
@given(
    path=st.sampled_from(sorted(ANSWERS)),
    start=st.sampled_from([b"", b"{", b'{"queries":', b'{"labels":[{"text":', b'{"instances":[{']),
    rest=st.binary(max_size=60),
    content_type=st.sampled_from(["application/json", "application/json; charset=utf-8"])
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
)
def test_any_bytes_are_answered(
    service: LocalService, path: str, start: bytes, rest: bytes, content_type: str
) -> None:
    headers = {"content-type": content_type}
    answer = service.post(path, content=start + rest, headers=headers)
    assert_as_documented(answer, ANSWERS[path])


@fuzz
@given(body=mutated(predict_bodies) | mutated(label_bodies), cut=st.floats(0, 1), data=st.data())
def test_damaged_json_is_answered(
    service: LocalService, body: Any, cut: float, data: st.DataObject
) -> None:
    content = bytearray(json.dumps(body, ensure_ascii=False).encode(errors="surrogatepass"))
    place = int(cut * (len(content) - 1))
    content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = "/labels" if "labels" in body else "/predict"
    answer = service.post(path, content=bytes(content), headers=JSON)
    assert_as_documented(answer, ANSWERS[path])


@fuzz
@given(label_id=st.text(min_size=1, max_size=40), after=texts, limit=scalars, other=texts)
def test_any_path_and_query_is_answered(
    service: LocalService, label_id: str, after: str, limit: Any, other: str
) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in label_id.encode())
    assert_as_documented(service.get(f"/labels/{encoded}"), ShownLabelAnswer)
    assert_problem(service.get(f"/unknown/{encoded}"), 404)
    parameters = {"after": after, "limit": str(limit), **({other: "x"} if other else {})}
    assert_as_documented(service.get("/labels", params=parameters), LabelPage)


@fuzz
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]),
    path=st.sampled_from(["/predict", "/labels", "/labels/x", "/health/ready", "/info", "/nope"]),
    value=st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=50),
)
def test_any_method_and_header_is_answered(
    service: LocalService, method: str, path: str, value: str
) -> None:
    raw = value.encode("latin-1")
    headers = [(b"x-request-id", raw), (b"authorization", raw), (b"content-length", b"0")]
    answer = service.request(method, path, headers=headers)
    assert answer.status_code < 500
    assert "html" not in answer.headers["content-type"]
    if answer.status_code >= 400 and method != "HEAD":
        assert_problem(answer, answer.status_code)
