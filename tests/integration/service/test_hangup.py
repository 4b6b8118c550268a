"""SIGHUP, sent by a closed terminal to all its processes, drains the service like SIGTERM."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from time import sleep

import pytest

from tests.support.http.server import TENT, post
from tests.support.serving import ServerProcess, wait_for
from tests.support.waiting import READY_WITHIN

# A query that waits for the first write, which never comes.
WAITING = post("/predict", {**TENT, "min_version": 1, "deadline_ms": 1_500})

BOTH = [
    pytest.param((), id="one"),
    pytest.param(("--workers", "2"), id="supervised", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def not_under_nohup() -> Iterator[None]:
    """Processes started here get the default handling of SIGHUP, even if tests run under nohup."""
    usual = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, usual)


@pytest.mark.parametrize("options", BOTH)
def test_a_hangup_answers_what_was_accepted(
    start: Callable[..., ServerProcess], options: tuple[str, ...]
) -> None:
    server = start(*options)
    with closing(server.connect()) as accepted:
        accepted.sendall(WAITING)
        wait_for(lambda: "keymatch_version_waiters 1.0" in server.client.get("/metrics").text)
        for process in {server.process.pid, *server.workers}:  # like a terminal
            os.kill(process, signal.SIGHUP)
        assert accepted.recv(100).startswith(b"HTTP/1.1 504 ")
    assert server.process.wait(READY_WITHIN) == 0
    assert not server.logged("defect")


@pytest.mark.parametrize("options", BOTH)
def test_a_hangup_is_ignored_under_nohup(
    start: Callable[..., ServerProcess], options: tuple[str, ...]
) -> None:
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # processes started here inherit it
    try:
        server = start(*options)
    finally:
        signal.signal(signal.SIGHUP, usual)
    for process in {server.process.pid, *server.workers}:
        os.kill(process, signal.SIGHUP)
    sleep(1)  # longer than the supervisor's interval between checks for signals
    assert server.client.post("/predict", json=TENT).status_code == 200
    assert server.process.poll() is None
    assert server.stop() == 0
