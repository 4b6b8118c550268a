"""The OpenAPI document lists the routes, limits and problems of the HTTP contract."""

import re
from functools import reduce
from operator import getitem
from typing import Any

import orjson
import pytest

from service.engine.bundle_directory import NAME
from tests.support.http.stream_lines import NDJSON, assert_stream_answer
from tests.support.serving import LocalService

ROUTES = {
    ("post", "/predict"): {400, 401, 403, 413, 415, 422, 429, 503, 504},
    ("post", "/labels"): {400, 401, 403, 409, 413, 415, 422, 429, 503, 504, 507},
    ("patch", "/labels"): {400, 401, 403, 409, 413, 415, 422, 429, 503, 504, 507},
    ("get", "/labels"): {401, 403, 422, 429, 503},
    ("get", "/labels/{label_id}"): {401, 403, 404, 422, 429, 503},
    ("patch", "/labels/{label_id}"): {
        400, 401, 403, 404, 409, 413, 415, 422, 429, 503, 504, 507
    },
    ("delete", "/labels/{label_id}"): {401, 403, 404, 409, 422, 429, 503, 504},
    ("post", "/instances"): {400, 401, 403, 409, 413, 415, 422, 429, 503, 504, 507},
    ("delete", "/instances"): {400, 401, 403, 409, 413, 415, 422, 429, 503, 504, 507},
    ("post", "/rules"): {400, 401, 403, 409, 413, 415, 422, 429, 503, 504, 507},
    ("get", "/rules"): {401, 403, 422, 429, 503},
    ("get", "/rules/{rule_id}"): {401, 403, 404, 422, 429, 503},
    ("delete", "/rules/{rule_id}"): {401, 403, 404, 409, 422, 429, 503, 504},
    ("post", "/items"): {400, 401, 403, 409, 413, 415, 422, 429, 503, 504, 507},
    ("get", "/items"): {401, 403, 422, 429, 503},
    ("get", "/items/{item_id}"): {401, 403, 404, 422, 429, 503},
    ("delete", "/items/{item_id}"): {401, 403, 404, 409, 422, 429, 503, 504},
    ("post", "/admin/snapshot"): {400, 401, 403, 409, 413, 415, 422, 429, 503},
    ("delete", "/admin/snapshot"): {401, 403, 503},
    ("post", "/admin/reload"): {400, 401, 403, 409, 413, 415, 422, 429, 503},
    ("get", "/health/live"): {503},
    ("get", "/health/ready"): {503},
    ("get", "/info"): {401, 403, 429, 503},
    ("get", "/metrics"): set(),
}  # fmt: skip
# HEAD gets the same answer as GET, without the body.
ROUTES |= {("head", path): refused for (method, path), refused in ROUTES.items() if method == "get"}
BODIES = [route for route, refused in ROUTES.items() if 413 in refused]


@pytest.fixture(scope="module")
def openapi(service: LocalService) -> dict[str, Any]:
    return service.get("/openapi.json").json()


def resolved(openapi: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that a `$ref` names, or `schema` itself if it is no reference."""
    if "$ref" not in schema:
        return schema
    names = schema["$ref"].removeprefix("#/").split("/")
    return reduce(getitem, names, openapi)


def request_schema(openapi: dict[str, Any], path: str, *, method: str = "post") -> dict[str, Any]:
    content = openapi["paths"][path][method]["requestBody"]["content"]
    return resolved(openapi, content["application/json"]["schema"])


def answer_schema(openapi: dict[str, Any], path: str, method: str) -> dict[str, Any]:
    content = openapi["paths"][path][method]["responses"]["200"]["content"]
    return content["application/json"]["schema"]


def test_exactly_the_routes_of_the_contract_are_documented(openapi: dict[str, Any]) -> None:
    served = {(method, path) for path, item in openapi["paths"].items() for method in item}
    assert served == ROUTES.keys()
    assert all(openapi["paths"][path][method]["summary"] for method, path in ROUTES)
    for method, path in ROUTES:
        if method != "head" and path != "/metrics":  # other answers are JSON
            assert resolved(openapi, answer_schema(openapi, path, method))["required"], path


def test_refusals_are_documented_as_problems(openapi: dict[str, Any]) -> None:
    for (method, path), expected in ROUTES.items():
        answers = openapi["paths"][path][method]["responses"]
        refusals = {int(status) for status in answers if int(status) >= 400}
        assert refusals == expected, (method, path)
        for status in refusals:
            if method == "head":
                assert "content" not in answers[str(status)]
                continue
            [(media_type, documented)] = answers[str(status)]["content"].items()
            assert media_type == "application/problem+json"
            required = set(resolved(openapi, documented["schema"])["required"])
            assert required == {"type", "title", "status", "detail"}


def test_predict_documents_its_limits(openapi: dict[str, Any]) -> None:
    schema = request_schema(openapi, "/predict")
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["queries"]
    fields = schema["properties"]
    assert fields.keys() == {
        "queries", "top_k", "memorization", "depth", "explain", "min_version", "deadline_ms",
        "items", "rerank", "spelling", "match", "min_confidence",
        "diversity", "filter",
    }  # fmt: skip
    assert (fields["queries"]["minItems"], fields["queries"]["maxItems"]) == (1, 256)
    query = fields["queries"]["items"]
    assert (query["minLength"], query["maxLength"]) == (1, 2048)
    assert bounds(fields["top_k"]) == (1, 1000, 10)
    assert bounds(fields["memorization"]) == (0, 1, None)
    assert bounds(fields["depth"]) == (1, 2000, None)
    assert bounds(fields["deadline_ms"]) == (1, 60_000, None)
    assert fields["min_version"]["minimum"] == 0
    assert fields["explain"]["default"] is False


def test_what_a_score_is_is_documented_wherever_it_is_said(openapi: dict[str, Any]) -> None:
    predict, reload, info = (
        resolved(openapi, answer_schema(openapi, path, method))
        for path, method in (("/predict", "post"), ("/admin/reload", "post"), ("/info", "get"))
    )
    result = resolved(openapi, predict["properties"]["results"]["items"])
    for schema, name, always in (
        (result, "score_kind", True),
        (info, "score_kind", True),
        (reload, "score_kind", False),
        (reload, "score_kind_before", False),
    ):
        field = schema["properties"][name]
        assert field["enum"] == ["votes", "probability"] and field["description"]
        assert (name in schema["required"]) == always
    for kind in ("votes", "probability"):
        assert f"`{kind}`" in result["properties"]["score_kind"]["description"]


def test_labels_documents_its_limits(openapi: dict[str, Any]) -> None:
    schema = request_schema(openapi, "/labels")
    assert schema["additionalProperties"] is False
    labels = schema["properties"]["labels"]
    assert (labels["minItems"], labels["maxItems"]) == (1, 1000)
    label = resolved(openapi, labels["items"])
    assert label["additionalProperties"] is False
    assert label["required"] == ["text"]
    text = label["properties"]["text"]
    assert (text["minLength"], text["maxLength"]) == (1, 2048)
    for name in ("aliases", "queries"):
        assert label["properties"][name]["maxItems"] == 100


def test_instances_documents_its_limits(openapi: dict[str, Any]) -> None:
    for method, fields in (
        ("post", {"query", "labels", "weight", "negative", "at", "clicks"}),
        ("delete", {"query", "labels"}),
    ):
        schema = request_schema(openapi, "/instances", method=method)
        assert schema["properties"]["unknown"]["enum"] == ["refuse", "skip"]
        assert ("trained" in schema["properties"]) == (method == "delete")
        instances = schema["properties"]["instances"]
        assert (instances["minItems"], instances["maxItems"]) == (1, 1000)
        instance = resolved(openapi, instances["items"])
        assert instance["additionalProperties"] is False
        assert instance["required"] == ["query", "labels"]
        assert instance["properties"].keys() == fields
        labels = instance["properties"]["labels"]
        assert (labels["minItems"], labels["maxItems"]) == (1, 100)


def test_every_body_documents_its_length_and_its_fields(openapi: dict[str, Any]) -> None:
    for method, path in BODIES:
        body = openapi["paths"][path][method]["requestBody"]
        assert body["description"].startswith("At most 4194304 bytes of JSON; more is a 413.")
        fields = request_schema(openapi, path, method=method)["properties"]
        assert all(field["description"] for field in fields.values()), path


def test_a_bundles_name_is_documented_alike(openapi: dict[str, Any]) -> None:
    snapshot = request_schema(openapi, "/admin/snapshot")["properties"]["bundle"]["anyOf"][0]
    reload = request_schema(openapi, "/admin/reload")["properties"]["bundle"]
    name = snapshot["pattern"].strip("^$")
    assert reload["pattern"].startswith(f"^({name}|")  # or a URL
    assert snapshot["pattern"] == f"^{NAME.pattern}$"


def test_references_resolve(openapi: dict[str, Any]) -> None:
    references = re.findall(r'"\$ref":"([^"]+)"', orjson.dumps(openapi).decode())
    assert references
    assert all(resolved(openapi, {"$ref": reference}) for reference in set(references))


# Answers to streams --------------------------------------------------------------------------

WRITTEN = {"line": 1, "id": "a", "status": "created", "neighbours": [], "version": 1}
PROBLEM = {"type": "urn:keymatch:problem:x", "title": "X", "status": 422, "detail": "x"}
REFUSED = {"line": 2, "error": PROBLEM}
STOPPED = {"stopped_after": 2, "error": PROBLEM}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "without a line"),
        ([WRITTEN, {"line": 2, "error": {"title": "X"}}, STOPPED], "line 2 of the answer"),
        ([REFUSED, WRITTEN], "twice or out of order"),
        ([STOPPED, {**WRITTEN, "line": 3}], "lines after the stream's end"),
        ([WRITTEN, {**REFUSED, "line": 3}, STOPPED], "stopped_after"),
    ],
)
def test_any_wrong_line_of_a_stream_is_objected_to(
    openapi: dict[str, Any], lines: list[dict[str, Any]], said: str
) -> None:
    """`assert_stream_answer`, which checks all streams of schemathesis, finds it."""
    with pytest.raises(AssertionError, match=said):
        assert_stream_answer(b"".join(orjson.dumps(line) + b"\n" for line in lines), openapi)


def test_a_stream_is_answered_as_documented(service: LocalService, openapi: dict[str, Any]) -> None:
    sent = b'{"text": "ice axe"}\n\n{"txt": "?"}\nno JSON\n'
    answer = service.post("/labels", content=sent, headers={"content-type": NDJSON})
    numbers = [line["line"] for line in assert_stream_answer(answer.content, openapi)]
    assert numbers == [1, 3, 4]


def bounds(field: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return minimum, maximum and default. An optional number has its bounds within `anyOf`."""
    number = next((one for one in field.get("anyOf", []) if one["type"] != "null"), field)
    return number["minimum"], number["maximum"], field.get("default")
