"""A page of another web site cannot use a service that the page's visitor can reach."""

import base64
import hashlib
import re
from collections.abc import Callable

import pytest

from service.http.middleware import STRICT
from service.settings import ServerSettings
from tests.support.http.problems import assert_problem
from tests.support.serving import LocalService

FOREIGN = {"origin": "https://evil.example"}
JSON = {"content-type": "application/json"}


def test_a_foreign_page_cannot_write(reader: LocalService) -> None:
    writes = [
        reader.post("/admin/snapshot", {}, headers=FOREIGN),
        reader.post("/admin/reload", {"bundle": "tiny"}, headers=FOREIGN),
        reader.post("/labels", {"labels": [{"text": "axe"}]}, headers=FOREIGN),
        reader.post("/instances", {"instances": []}, headers=FOREIGN),
        reader.request("PATCH", "/labels/tent", json={"text": "axe"}, headers=FOREIGN),
        reader.request("DELETE", "/labels/tent", headers=FOREIGN),
    ]
    for answer in writes:
        problem = assert_problem(answer, 403)
        assert problem["type"] == "urn:keymatch:problem:foreign-origin"
    own = {"origin": "http://service"}
    assert_problem(reader.post("/admin/reload", {"bundle": "none"}, headers=own), 422)


def test_another_name_is_refused(reader: LocalService) -> None:
    for path in ("/info", "/health/live", "/docs", "/nothing"):
        problem = assert_problem(reader.get(path, headers={"host": "evil.example"}), 421)
        assert problem["type"] == "urn:keymatch:problem:unknown-host"


def test_every_answer_has_the_strict_headers(
    serve: Callable[..., LocalService], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve(server=ServerSettings())
    answers = [
        service.get("/health/live"),
        service.get("/metrics"),
        service.get("/openapi.json"),
        service.get("/nothing"),
        service.get("/"),
        service.request("PUT", "/labels"),
        service.post("/predict", {"queries": ["tent"]}),
        service.post("/predict", {}),
        service.get("/info", headers={"host": "evil.example"}),
    ]
    monkeypatch.setattr(service.engine, "describe", None)
    answers.append(service.get("/info"))
    assert answers[-1].status_code == 500
    for answer in answers:
        for name, value in STRICT:
            assert answer.headers.get_list(name.decode()) == [value.decode()], answer.request.url


def test_the_documentation_is_allowed_what_it_needs_and_no_more(reader: LocalService) -> None:
    assert reader.get("/").headers["location"] == "/docs"
    page = reader.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    [policy] = page.headers.get_list("content-security-policy")
    allowed = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    assert allowed["default-src"] == allowed["frame-ancestors"] == ["'none'"]
    inline = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inline]
    scripts = re.findall(r'<script src="(.*?)"', page.text)
    assert len(inline) == len(scripts) == 1
    assert allowed["script-src"] == [*scripts, *(f"'sha256-{one}'" for one in digests)]
    [style] = re.findall(r'<link type="text/css" rel="stylesheet" href="(.*?)"', page.text)
    assert allowed["style-src"] == [style, "'unsafe-inline'"]
    assert "url: '/openapi.json'" in page.text
    assert allowed["connect-src"] == ["'self'"]
