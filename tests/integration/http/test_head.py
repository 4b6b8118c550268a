"""HEAD gets the answer of GET without the body, which probes and caches do not need."""

import pytest

from tests.support.serving import ServerProcess

PATHS = (
    "/health/live", "/health/ready", "/info", "/metrics", "/labels", "/labels?limit=0",
    "/labels/nowhere", "/items", "/items/nowhere", "/docs", "/openapi.json", "/", "/nowhere",
    "/predict",
)  # fmt: skip
CHANGING = {"x-request-id"}
GROWING = {"/metrics", "/info"}  # their length may change between requests


@pytest.mark.parametrize("path", PATHS)
def test_a_head_has_the_status_and_the_header_of_a_get(server: ServerProcess, path: str) -> None:
    changing = CHANGING | ({"content-length"} if path in GROWING else set())
    head, got = server.client.head(path), server.client.get(path)
    assert head.status_code == got.status_code
    assert head.content == b""
    assert got.content or path == "/"
    assert head.headers.keys() == got.headers.keys()
    for name in head.headers.keys() - changing:
        assert head.headers[name] == got.headers[name]


def test_a_path_names_its_methods(server: ServerProcess) -> None:
    assert server.client.post("/info").headers["allow"] == "GET, HEAD"
    assert server.client.put("/labels").headers["allow"] == "GET, HEAD, POST"


def test_a_head_is_counted_under_its_route(server: ServerProcess) -> None:
    before = counted(server)
    for _ in range(3):
        server.client.head("/health/live")
    assert counted(server) == before + 3


def counted(server: ServerProcess) -> float:
    head = 'keymatch_requests_total{route="/health/live",status="200"} '
    lines = server.client.get("/metrics").text.splitlines()
    return next((float(line.removeprefix(head)) for line in lines if line.startswith(head)), 0)
