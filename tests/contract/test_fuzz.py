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

from service.core.processes.low_priority import LowPriorityChild
from service.http.admin import BundleAnswer
from service.http.instances import InstancesAnswer
from service.http.label_stream import MergeAnswer
from service.http.labels import LabelPage, LabelsAnswer, ShownLabelAnswer
from service.http.predictions import PredictAnswer
from tests.support.http.answers import assert_answer
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import LocalService

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


def labels(values: st.SearchStrategy[Any], **more: Any) -> st.SearchStrategy[Any]:
    """Labels whose metadata have these values."""
    metadata = st.dictionaries(texts, values, max_size=2)
    optional = {"queries": st.lists(texts, max_size=2), "metadata": metadata, **more}
    return st.fixed_dictionaries({"text": texts}, optional=optional)


label_bodies = st.fixed_dictionaries(
    {"labels": st.lists(labels(texts, id=texts), min_size=1, max_size=3)}
)
merge_bodies = labels(st.none() | texts)
change_bodies = st.fixed_dictionaries(
    {"labels": st.lists(labels(texts, id=texts | st.just("tent")), min_size=1, max_size=3)}
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
        below = parent.values() if isinstance(parent, dict) else parent
        inner = [one for one in below if isinstance(one, dict | list) and one]
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


def assert_as_documented(answer: httpx.Response, model: Any) -> None:
    if answer.status_code == 200:
        assert_answer(answer.json(), model)
        return
    assert 400 <= answer.status_code < 500 or answer.status_code in (503, 504, 507)
    assert_problem(answer, answer.status_code)
    assert_no_internals(answer)


ROUTES: dict[tuple[str, str], tuple[Any, st.SearchStrategy[Any]]] = {
    ("POST", "/predict"): (PredictAnswer, predict_bodies),
    ("POST", "/labels"): (LabelsAnswer, label_bodies),
    ("PATCH", "/labels/tent"): (MergeAnswer, merge_bodies),
    ("PATCH", "/labels"): (LabelsAnswer, change_bodies),
    ("POST", "/instances"): (InstancesAnswer, instance_bodies),
    ("POST", "/admin/snapshot"): (BundleAnswer, snapshot_bodies),
    ("POST", "/admin/reload"): (BundleAnswer, reload_bodies),
}
ANY_JSON = {route: bodies | mutated(bodies) | documents for route, (_, bodies) in ROUTES.items()}


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
@fuzz
@given(data=st.data())
def test_any_json_is_answered(
    service: LocalService,
    monkeypatch: pytest.MonkeyPatch,
    route: tuple[str, str],
    data: st.DataObject,
) -> None:
    # Skip the child process, which would write for seconds; everything before it is real.
    monkeypatch.setattr(LowPriorityChild, "run", lambda *_, **_how: "")
    body = data.draw(ANY_JSON[route])
    answer = service.request(*route, content=json.dumps(body), headers=JSON)
    assert_as_documented(answer, ROUTES[route][0])
    if route[1] == "/admin/snapshot":
        assert service.request("DELETE", "/admin/snapshot").json() == {"bundle": None}
    if answer.status_code == 200:
        assert_consistent(service, route[1], body, answer.json())


def assert_consistent(service: LocalService, path: str, body: Any, answer: Any) -> None:
    if path == "/predict":
        found = [result["query"] for result in answer["results"]]
        assert len(found) == len(body["queries"])
        assert all(query in given for query, given in zip(found, body["queries"], strict=True))
    if path == "/labels":
        for label in answer["labels"]:
            # Clients resolve "." and ".." in a path before they send it.
            assume(label["id"] not in (".", ".."))
            shown = service.get(f"/labels/{quote(label['id'], safe='')}")
            assert shown.status_code == 200, label
            assert_as_documented(shown, ShownLabelAnswer)
    if path == "/instances":
        assert answer["accepted"] <= len(body["instances"])
    if path == "/admin/reload":
        assert answer["bundle"] == "tiny"


@fuzz
@given(
    path=st.sampled_from(["/predict", "/labels", "/instances", "/admin/reload"]),
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
    assert_as_documented(answer, ROUTES["POST", path][0])


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
    assert_as_documented(answer, ROUTES["POST", path][0])


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
