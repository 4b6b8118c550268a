"""If nobody reads the service's log output, it still answers and ends in time."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import httpx
import pytest

from service.child_server import free_port
from tests.support.waiting import READY_WITHIN, wait_for

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %b\r\n\r\n" % (b"a" * 128)
Unread = tuple[subprocess.Popen[bytes], httpx.Client]
PIPELINED = 50  # number of requests that are sent at once


@pytest.fixture
def unread(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Unread]]:
    """`unread(*options)` starts a server whose stderr nobody reads."""

    @contextmanager
    def serve(*options: str) -> Iterator[Unread]:
        reading, writing = os.pipe()
        port = free_port()
        places = ("--bundle", str(tiny_bundle_folder), "--state", str(tmp_path / "state"))
        process = subprocess.Popen(
            [sys.executable, "-m", "service", "serve", *places, "--port", str(port), *options],
            stderr=writing,
        )
        os.close(writing)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
                yield process, client
        finally:
            process.kill()
            process.wait()
            os.close(reading)

    with ExitStack() as running:
        yield lambda *options: running.enter_context(serve(*options))


def ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def ask(client: httpx.Client, requests: int) -> None:
    """Send so many requests with long log lines, and receive their answers."""
    place = (client.base_url.host, client.base_url.port)
    with socket.create_connection(place, timeout=10) as connection:
        for _ in range(requests // PIPELINED):
            connection.sendall(LIVE * PIPELINED)
            received = b""
            while received.count(b'{"status":"live"}') < PIPELINED:
                received += connection.recv(65_536)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--workers", "1"), id="one"),
        pytest.param(("--workers", "2"), id="supervised", marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_stops_stops_nobody(
    unread: Callable[..., Unread], options: tuple[str, ...]
) -> None:
    process, client = unread(*options)
    wait_for(lambda: ready(client))
    while not re.search(r"dropped_log_lines_total [1-9]", client.get("/metrics").text):
        ask(client, 500)
    answer = client.post("/predict", json={"queries": ["tent"]})
    assert answer.status_code == 200
    start = monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(READY_WITHIN) == 0
    assert monotonic() - start < 10
