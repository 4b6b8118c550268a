"""Child processes may be killed at any time; the service goes on."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crash.scenario import Scenario
from tests.support.children import child_processes
from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def children(server: ServerProcess, word: str) -> list[int]:
    return child_processes(server.process.pid, word)


def test_a_killed_sealing_child(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="sealing child")
    with scenario.server() as server:
        with scenario.traffic(server):
            [child, *_] = wait_for(lambda: children(server, "service.core.memory.build_segment"))
            os.kill(child, signal.SIGKILL)
            message = "live rows or posted items cannot be sealed"
            [said, *_] = wait_for(lambda: server.logged(message))
        assert "ended with -9" in said["cause"]
        scenario.check(server)
        scenario.prove_equal(server)  # waits until all is sealed
        assert server.logged("sealed")


def test_a_killed_snapshot_child(new_scenario: Callable[..., Scenario], shelf: Path) -> None:
    scenario = new_scenario(seed="snapshot child", bundle=shelf / "outdoor")
    with scenario.server() as server, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(server.client.post, "/admin/snapshot", json={"bundle": "killed"})
        [child] = wait_for(lambda: children(server, "snapshot"))
        os.kill(child, signal.SIGKILL)
        assert_problem(asked.result(), 503)
        assert server.client.get("/health/ready").json()["writes"] == "accepted"
        assert server.client.post("/admin/snapshot", json={"bundle": "killed"}).status_code == 200
        scenario.check(server)
