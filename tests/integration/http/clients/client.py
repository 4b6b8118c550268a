"""A Python client that uses httpx by default, or, if named, requests or the standard library."""

import base64
import gzip
import sys
from collections.abc import Iterable
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx
import requests

service, size, library = sys.argv[1], int(sys.argv[2]), sys.argv[3]
JSON, LINES = "application/json", "application/x-ndjson"
Body = bytes | Iterable[bytes] | None


def show(name: str, method: str, path: str, kind: str, coding: str, body: Body = None) -> None:
    headers = {"Content-Type": kind, **({"Content-Encoding": coding} if coding else {})}
    status, content = ask(method, service + path, headers, body)
    print(f"{name}\t{status}\t{base64.b64encode(content).decode()}")  # noqa: T201


def ask(method: str, url: str, headers: dict[str, str], body: Body) -> tuple[int, bytes]:
    if library == "httpx":
        answer = httpx.request(method, url, headers=headers, content=body)
        return answer.status_code, answer.content
    if library == "requests":
        found = requests.request(method, url, headers=headers, data=body, timeout=60)
        return found.status_code, found.content
    try:
        with urlopen(Request(url, body, headers, method=method)) as opened:
            return opened.status, opened.read()
    except HTTPError as error:
        return error.code, error.read()


def chunked(content: bytes) -> Iterable[bytes]:
    return iter([content[:7], content[7:]])


query = b'{"queries": ["tent"], "top_k": 1}'
lines = b'{"id": "first", "text": "a"}\n{"id": "second", "text": "b"}\n'
show("predict", "POST", "/predict", JSON, "", query)
show("chunked", "POST", "/predict", JSON, "", chunked(query))
show("gzip", "POST", "/predict", JSON, "gzip", gzip.compress(query))
show("stream", "POST", "/labels", LINES, "", chunked(lines))
show("gzip stream", "POST", "/labels", LINES, "gzip", chunked(gzip.compress(lines)))
show("admin", "POST", "/admin/reload", JSON, "", b'{"bundle": "missing"}')
show("get", "GET", "/labels/first", JSON, "")
show("delete", "DELETE", "/labels/first", JSON, "")
show("too large", "POST", "/predict", JSON, "", bytes(size))
show("again", "POST", "/predict", JSON, "", query)
