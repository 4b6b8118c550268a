"""The server that load tests and replays start as a child process and send requests to."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from service.child_server import (
    HOST,
    Client,
    Server,
    ServerFailed,
    running_server,
    stopped_afterwards,
)
from service.core.errors import CommandFailed

ONE = ("--workers", "1")


def test_the_server_is_ready_inside_the_block_and_gone_after_it(tiny_bundle_folder: Path) -> None:
    with running_server(tiny_bundle_folder, options=ONE) as server:
        with closing(Client(HOST, server.port)) as client:
            assert client.ready()
            assert client.post("/predict", {"queries": ["tent"]})["results"]
            with pytest.raises(CommandFailed, match="/labels: 422 "):
                client.post("/labels", {})
        assert server.process.poll() is None
        assert server.seconds_to_ready > 0
        with pytest.raises(KeyError), stopped_afterwards(server):  # also if the block fails
            raise KeyError
        assert server.process.returncode == 0
    assert server.process.returncode == 0
    assert not server.log.exists()


def test_a_server_that_cannot_start_fails_early_with_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match=r"manifest\.json is missing"),
        running_server(tmp_path / "nowhere"),
    ):
        pytest.fail("it must not start")


def test_a_server_that_is_never_ready_fails_in_time(tmp_path: Path) -> None:
    sleeping = [sys.executable, "-c", "import time; print('idle', flush=True); time.sleep(60)"]
    server = Server(sleeping, log=tmp_path / "log", port=1)
    with pytest.raises(ServerFailed, match=r"(?s)was not ready in time.*idle"):
        server.wait_ready(3.0)
    server.kill()
