"""Each request is read to its end, whatever protocols it asks for; HEAD gets a header alone."""

from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPResponse
from typing import Any

import orjson
import pytest

from tests.support.http.server import HttpService

JSON, NDJSON = "application/json", "application/x-ndjson"
# Java's standard client, a browser and an old proxy send the first three.
STATES: dict[str, Sequence[str]] = {
    "h2c": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA"),
    "websocket": ("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: a"),
    "tls": ("Upgrade: TLS/1.0", "Connection: Upgrade"),
    "upgrade and close": ("Connection: close, Upgrade", "Upgrade: h2c"),
    "two fields": ("Connection: close", "Connection: upgrade", "Upgrade: h2c, websocket"),
    "no option": ("Upgrade: h2c",),
    "no protocol": ("Connection: upgrade",),
    "continue": ("Expect: 100-continue",),
    "continue and h2c": ("Expect: 100-continue", "Connection: Upgrade", "Upgrade: h2c"),
    "close": ("Connection: close",),
    "proxy": ("Proxy-Connection: keep-alive", "TE: trailers"),
}
LINES = b'{"text": "second"}\n{"text": "third"}\n'
REQUESTS: dict[str, tuple[str, str, bytes]] = {
    "predict": ("POST /predict", JSON, b'{"queries": ["tent"], "top_k": 2}'),
    "labels": ("POST /labels", JSON, b'{"labels": [{"id": "ice", "text": "ice axe"}]}'),
    "stream": ("POST /labels", NDJSON, LINES),
    "merge": ("PATCH /labels/ice", JSON, b'{"metadata": {}, "queries": []}'),
    "instances": ("POST /instances", JSON, b'{"instances": [{"query": "a", "labels": ["no"]}]}'),
    "items": ("POST /items", JSON, b'{"items": [{"text": "no item memory"}]}'),
    # If the service lost this body, it would write a snapshot.
    "snapshot": ("POST /admin/snapshot", JSON, b'{"bundle": "no/name"}'),
    "reload": ("POST /admin/reload", JSON, b'{"bundle": "missing"}'),
    "live": ("GET /health/live", JSON, b""),
    "label": ("GET /labels/ice", JSON, b""),
    "delete": ("DELETE /labels/nowhere", JSON, b""),
}
PATHS = (
    "/health/live", "/health/ready", "/info", "/metrics", "/labels", "/labels?limit=0",
    "/labels/nowhere", "/items", "/items/nowhere", "/docs", "/openapi.json", "/", "/nowhere",
    "/predict",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _written(service: HttpService) -> None:
    """Write once what later repetitions do not change."""
    for name in ("labels", "stream"):
        answer(service, parts(name, (), chunked=False), "POST")


def parts(name: str, fields: Sequence[str], *, chunked: bool) -> tuple[bytes, bytes]:
    """Return the header and the body of a request, as bytes to send."""
    line, kind, body = REQUESTS[name]
    framing = f"Content-Length: {len(body)}"
    if chunked:
        framing = "Transfer-Encoding: chunked"
        middle = len(body) // 2
        pieces = [piece for piece in (body[:middle], body[middle:]) if piece]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = [f"{line} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", framing, *fields]
    return "\r\n".join([*head, "", ""]).encode(), body


def answer(service: HttpService, sent: Sequence[bytes], method: str) -> tuple[int, Any]:
    """Send a request; return the status and the body without the fields that vary."""
    with closing(service.connect()) as connection:
        for piece in sent:
            connection.sendall(piece)
        found = HTTPResponse(connection, method=method)
        found.begin()
        documents = [orjson.loads(line) for line in found.read().splitlines()]
    for document in documents:
        document.pop("timing_ms", None)
    return found.status, documents


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_header_changes_nothing_of_the_body(
    service: HttpService, name: str, state: str, chunked: bool
) -> None:
    method = REQUESTS[name][0].partition(" ")[0]
    expected = answer(service, parts(name, (), chunked=False), method)
    head, body = parts(name, STATES[state], chunked=chunked)
    whole = head + body
    for sent in ([whole], [head, body], [whole[:40], whole[40:-3], whole[-3:]]):
        assert answer(service, sent, method) == expected


@pytest.mark.parametrize("state", ["h2c", "websocket", "two fields"])
def test_what_follows_is_the_next_request(service: HttpService, state: str) -> None:
    fields = [field for field in STATES[state] if "close" not in field]
    head, body = parts("predict", fields, chunked=False)
    with closing(service.connect()) as connection:
        connection.sendall((head + body) * 3)
        received = b""  # one read may return several answers
        while received.count(b'"timing_ms"') < 3:
            received += (piece := connection.recv(65_536))
            assert piece, received
    assert received.count(b"HTTP/1.1 200 ") == 3
    assert received.count(b'"query":"tent"') == 3


def test_no_tunnel_is_opened(service: HttpService) -> None:
    sent = b"CONNECT other:443 HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"anything"
    status, [problem] = answer(service, [sent], "POST")
    assert status == 400
    assert problem["detail"] == "this is no proxy: CONNECT is not served"


@pytest.mark.parametrize("path", PATHS)
def test_a_head_has_the_status_and_the_header_of_a_get(service: HttpService, path: str) -> None:
    head, got = service.client.head(path), service.client.get(path)
    assert head.status_code == got.status_code
    assert head.content == b""
    assert got.content or path == "/"
    assert head.headers.keys() == got.headers.keys()
    growing = {"content-length"} if path in ("/metrics", "/info") else set()
    for name in head.headers.keys() - growing - {"x-request-id", "date"}:
        assert head.headers[name] == got.headers[name]
