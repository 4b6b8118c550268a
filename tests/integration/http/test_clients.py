"""Standard HTTP clients of four languages against a real service."""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import pytest

from service.settings import Limits
from tests.support.serving import ServerProcess

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "clients"
# The program, the Debian package that contains it, and its first arguments.
CLIENTS: dict[str, tuple[str, str, Sequence[str]]] = {
    "java": ("java", "openjdk-17-jdk-headless", [str(PROGRAMS / "Client.java")]),
    "go": ("go", "golang-go", ["run", str(PROGRAMS / "client.go")]),
    "node": ("node", "nodejs", [str(PROGRAMS / "client.mjs")]),
    **dict.fromkeys(
        ("httpx", "requests", "urllib"), (sys.executable, "", [str(PROGRAMS / "client.py")])
    ),
}
# Far above the limit and the socket buffers. Java's and Python's clients send all of it before
# they read.
TOO_LARGE = Limits().body_bytes + 20_000_000
EXPECTED = {
    "predict": 200, "chunked": 200, "gzip": 200, "stream": 200, "gzip stream": 200, "admin": 422,
    "get": 200, "delete": 200, "too large": 413, "again": 200,
}  # fmt: skip


def program(client: str) -> str:
    """The path of the program that runs a client; if missing, fail in CI, else skip."""
    name, package, _ = CLIENTS[client]
    path = shutil.which(name)
    if path is None:
        message = f"{name} is not installed: apt-get install {package}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.mark.parametrize("client", CLIENTS)
def test_every_request_is_read_to_its_end(
    start: Callable[..., ServerProcess], tmp_path: Path, client: str
) -> None:
    server = start()
    url = f"http://127.0.0.1:{server.port}"
    command = [program(client), *CLIENTS[client][2], url, str(TOO_LARGE)]
    if CLIENTS[client][0] == sys.executable:
        command.append(client)
    environment = {**os.environ, "GOCACHE": str(tmp_path / "go"), "GO111MODULE": "off"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert {name: int(status) for name, status, _ in rows} == EXPECTED
    answers = {
        name: [orjson.loads(line) for line in base64.b64decode(content).splitlines()]
        for name, _, content in rows
    }
    for name in ("predict", "chunked", "gzip", "again"):
        assert [one["query"] for one in answers[name][0]["results"]] == ["tent"]
    for name in ("stream", "gzip stream"):
        assert [line["id"] for line in answers[name]] == ["first", "second"]
    [problem] = answers["admin"]
    assert problem["title"] == "Bundle missing"
    assert answers["get"][0]["id"] == "first"
    assert not server.logged("defect")
