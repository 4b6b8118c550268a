"""A divided memory whose shards are killed again and again, by Ray's local cluster."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep, time
from typing import Any

import httpx
import pytest

from loadtests.resources import shard_processes, with_command
from service.child_server import HOST, free_port
from tests.crash.scenario import FIGURES, QUERIES, Scenario, answers, at_call
from tests.support import commands
from tests.support.cluster_here import need_ray
from tests.support.serving import ServerProcess, server_process, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHARDS, REPLICAS = 3, 2
KILLS = int(os.environ.get("KEYMATCH_SHARD_KILLS", "6"))
KILL_SECONDS = 5.0  # between two kills
STOPPED_SECONDS = float(os.environ.get("KEYMATCH_SHARD_STOPPED_SECONDS", "5"))
ENDS_SECONDS = 60  # for a service that is to end within 6 s, on a busy machine
WINDOW_SECONDS = 2.0  # between a refusal and a sample that shows its cause


@pytest.fixture(autouse=True)
def _ray() -> None:
    need_ray()


def test_killed_shards(new_scenario: Callable[..., Scenario]) -> None:
    """With a replica left of each shard, no request fails, and no answer is wrong."""
    scenario, drawn = new_scenario(seed="shards"), random.Random("shards")
    with divided_until_checked(scenario) as divided:
        with scenario.traffic(divided):
            for _ in range(KILLS):
                start = monotonic()
                os.kill(drawn.choice(list(shard_processes(divided.pid))), signal.SIGKILL)
                wait_for(lambda: shards_of(divided)["replicas"] < SHARDS * REPLICAS)
                wait_for(lambda: shards_of(divided)["replicas"] == SHARDS * REPLICAS)
                FIGURES.ready.append(monotonic() - start)
                sleep(max(0.0, KILL_SECONDS - (monotonic() - start)))


def test_shards_killed_faster_than_they_start(new_scenario: Callable[..., Scenario]) -> None:
    """Queries are refused only while the service says that a shard does not answer."""
    scenario, drawn = new_scenario(seed="fast"), random.Random("fast")
    for client in scenario.clients:
        client.without_shards = []
    with divided_until_checked(scenario) as divided:
        with scenario.traffic(divided), sampled(lambda: shards_of(divided)["answering"]) as samples:
            for _ in range(KILLS):
                sleep(KILL_SECONDS)
                if alive := list(shard_processes(divided.pid)):
                    os.kill(drawn.choice(alive), signal.SIGKILL)
            wait_for(lambda: shards_of(divided)["replicas"] == SHARDS * REPLICAS)
        missing = [(start, end) for start, end, answering in samples if answering < SHARDS]
        for client in scenario.clients:
            for refused in client.without_shards or ():
                assert any(
                    start - WINDOW_SECONDS < refused < end + WINDOW_SECONDS
                    for start, end in missing
                )


def test_without_any_replica_queries_are_refused(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="no replica")
    with scenario.server(options=["--shards", "2"]) as divided:
        before = results(divided, scenario)
        for pid in list(shard_processes(divided.pid)):
            assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
            os.kill(pid, signal.SIGKILL)
        refused = divided.client.post("/predict", json={"queries": QUERIES})
        assert refused.status_code == 503
        assert refused.json()["title"] == "Shards unavailable"
        wait_for(lambda: shards_of(divided)["answering"] == 2)
        assert results(divided, scenario) == before


def test_the_cluster_is_lost(new_scenario: Callable[..., Scenario]) -> None:
    """Reads and writes go on without the head, and /health/ready says that it is gone."""
    scenario = new_scenario(seed="no head")
    with scenario.server(options=["--shards", "2"]) as divided:
        before = results(divided, scenario)
        [head] = with_command(divided.pid, b"gcs_server")
        with stopped_process(head):
            wait_for(lambda: not shards_of(divided)["attended"])
            assert results(divided, scenario) == before
            posted = divided.client.post("/labels", json={"labels": [{"text": "quiet harbor"}]})
            asked = {"queries": ["quiet harbor"], "min_version": posted.json()["version"]}
            [found] = divided.client.post("/predict", json=asked).json()["results"]
            assert "quiet harbor" in [keyword["id"] for keyword in found["keywords"]]
        wait_for(lambda: shards_of(divided)["attended"])


def test_a_machine_that_may_not_join_says_what_it_needs(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head wants a token that this service does not send."""
    monkeypatch.setenv("RAY_TMPDIR", gettempdir())
    address = f"{HOST}:{free_port()}"
    with _head(address, token="0" * 64, output=tmp_path / "head"):
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        options = ["--bundle", tiny_bundle_folder, "--state", tmp_path / "state", "--port", 0]
        options += ["--workers", 1, "--shards", 1, "--cluster", address]
        ended = commands.run("service.keymatch", "serve", *options, seconds=300)
    assert ended.returncode == 2
    *_, last = ended.stderr.splitlines()  # Ray's own lines are before it
    assert f"this machine cannot join the Ray cluster at {address}: it needs a node" in last


def test_a_stopped_shard(new_scenario: Callable[..., Scenario]) -> None:
    """The other replica answers for it. Nothing is lost, and it follows once it goes on."""
    scenario = new_scenario(seed="stopped shard")
    options = ["--shards", "2", "--replicas", "2"]
    with scenario.server(options=options) as divided:
        wait_for(lambda: shards_of(divided)["replicas"] == 4)
        stopped = min(shard_processes(divided.pid))
        with scenario.traffic(divided), stopped_process(stopped):
            # Each query that asks the stopped replica first is answered by the other one.
            scenario.wait_for_writes(20)
            sleep(STOPPED_SECONDS)
        scenario.check(divided)
        assert stopped in shard_processes(divided.pid)  # not replaced
        with scenario.server() as whole:
            assert results(divided, scenario) == results(whole, scenario)


def test_a_stopped_shard_without_a_replica(new_scenario: Callable[..., Scenario]) -> None:
    """Queries are refused in time, writes go on, and the shard follows once it goes on."""
    scenario = new_scenario(seed="stopped alone", engine="shard_timeout_ms = 500")
    with scenario.server(options=["--shards", "2"]) as divided:
        before = results(divided, scenario)
        with stopped_process(min(shard_processes(divided.pid))):
            asked = {"queries": QUERIES}
            refused = divided.client.post("/predict", json={**asked, "deadline_ms": 60_000})
            assert refused.status_code == 503
            assert refused.json()["title"] == "Shards unavailable"
            late = divided.client.post("/predict", json={**asked, "deadline_ms": 100})
            assert late.status_code in (503, 504)
            posted = divided.client.post("/labels", json={"labels": [{"text": "quiet harbor"}]})
            assert posted.status_code == 200
            assert shards_of(divided)["answering"] == 1
        asked = {"queries": ["quiet harbor"], "min_version": posted.json()["version"]}
        answer = wait_for(lambda: answered(divided, {**asked, "deadline_ms": 60_000}))
        [found] = answer.json()["results"]
        assert "quiet harbor" in [keyword["id"] for keyword in found["keywords"]]
        assert divided.client.delete("/labels/quiet harbor").status_code == 200
        assert results(divided, scenario) == before


def test_a_stop_while_the_shards_are_waited_for(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the service in time, even if it comes before the service notes signals."""
    monkeypatch.setenv("RAY_TMPDIR", gettempdir())
    config = tmp_path / "keymatch.toml"
    config.write_text("[server]\nshutdown_seconds = 1\n[engine]\nwarm_up_seconds = 3600\n")
    with socket.create_server(
        (HOST, 0)
    ) as silent:  # in place of a head, for whose answer Ray waits
        cluster = f"{HOST}:{silent.getsockname()[1]}"
        options = ["--shards", "1", "--cluster", cluster, "--config", str(config)]
        for call in ("service.server.worker:Telemetry", "service.shards.places:PlacesFolder.want"):
            state, log = tmp_path / f"state-{call}", tmp_path / f"log-{call}"
            program = at_call(call, "after", 1, sent="TERM")
            with server_process(
                tiny_bundle_folder, state, log, *options, program=program, wait=False
            ) as server:
                start = monotonic()
                assert wait_for(lambda: server.process.poll() is not None)
                assert monotonic() - start < ENDS_SECONDS
                assert not server.logged("defect")


@contextmanager
def stopped_process(pid: int) -> Iterator[None]:
    """Stop a process, by SIGSTOP, until the block ends."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def answered(server: ServerProcess, question: dict[str, Any]) -> httpx.Response | None:
    """Return the answer to a question, or None if it is refused."""
    answer = server.client.post("/predict", json=question)
    return answer if answer.status_code == 200 else None


@contextmanager
def divided_until_checked(scenario: Scenario) -> Iterator[ServerProcess]:
    """Serve with all replicas; after the block, compare with the ledgers and with one process."""
    options = ["--shards", str(SHARDS), "--replicas", str(REPLICAS)]
    with scenario.server(options=options) as divided:
        wait_for(lambda: shards_of(divided)["replicas"] == SHARDS * REPLICAS)
        yield divided
        scenario.check(divided)
        with scenario.server() as whole:
            assert results(divided, scenario) == results(whole, scenario)


@contextmanager
def sampled(look: Callable[[], int]) -> Iterator[list[tuple[float, float, int]]]:
    """Look again and again in a thread; yields what was seen between which Unix times."""
    samples: list[tuple[float, float, int]] = []
    end = threading.Event()

    def run() -> None:
        while not end.wait(0.1):
            start, seen = time(), look()
            samples.append((start, time(), seen))

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        try:
            yield samples
        finally:
            end.set()
        running.result()


@contextmanager
def _head(address: str, *, token: str, output: Path) -> Iterator[None]:
    """Run a head of Ray that wants a token."""
    host, _, port = address.partition(":")
    options = ["--head", "--block", "--node-ip-address", host, "--port", port, "--num-cpus", "1"]
    options += ["--include-dashboard", "false", "--disable-usage-stats"]
    command = [str(Path(sys.executable).with_name("ray")), "start", *options]
    token_of = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}

    def started() -> subprocess.Popen[bytes]:
        with output.open("w") as written:
            return subprocess.Popen(
                command, env={**os.environ, **token_of}, stdout=written, stderr=written
            )

    def ready() -> bool:
        nonlocal head
        if head.poll() is not None:  # on a busy machine: Ray itself waits for 30 s only
            head = started()
        return "--block" in output.read_text()  # said once all its processes are there

    head = started()
    try:
        wait_for(ready)
        yield
    finally:
        head.terminate()  # it ends its processes
        head.wait(timeout=60)


def shards_of(server: ServerProcess) -> dict[str, Any]:
    shards: dict[str, Any] = server.client.get("/health/ready").json()["shards"]
    return shards


def results(server: ServerProcess, scenario: Scenario) -> Any:
    """Return the answers to the scenario's queries; their segments differ, so counts may."""
    found, _ = answers(server, len(scenario.events()))
    return found
