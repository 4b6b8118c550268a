"""After kill -9 during writes, the log holds every acknowledged write once, and nothing else.

Clients write labels with dates and boosts, clicks, negative pairs, items and rules, delete and
unlearn them, and check that the service shows exactly what they wrote (`Client`, `Ledger`).

Servers are killed at 20 random moments, or KEYMATCH_CRASHES. A scenario has five kills, so some
servers die before they have sealed the previous one's rows. Then its answers are compared with
those of a process that has only the bundle and the log. Every fourth scenario uses PostgreSQL.
Others are killed at moments that random kills seldom hit. At the shortest, the service kills
itself.
"""

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import httpx
import pytest

from service.core.bundle.bundle import open_bundle
from tests.crash.client import GONE
from tests.crash.scenario import CRASHES, FIGURES, SEED, Scenario, at_call
from tests.support.serving import ServerProcess, wait_for

pytestmark = pytest.mark.slow

CRASHES_PER_SCENARIO = 5
SCENARIOS = -(-CRASHES // CRASHES_PER_SCENARIO)
MOST_SECONDS = 1.5  # from the start of the traffic to the kill
MEMORY = "service.core.memory.knowledge_memory"
SEGMENTS = "service.core.memory.segment_store:SegmentStore"
# Function, whether to die before or after the call, and at which call; comments: the state then.
WRITING = [
    ("service.core.label_log.log:Appending.append", "after", 25),  # written, not committed
    ("service.core.label_log.log:Appending.remember", "after", 12),  # key, not committed
    (f"{MEMORY}:KnowledgeMemory.publish", "before", 40),  # committed, not visible
    ("service.engine.writing.writer:Writer._write", "after", 30),  # visible, perhaps not answered
]
SWITCH = "service.engine.writing.writer:Writer._switch_to"
COMPACTING = [
    ("service.core.label_log.log:Appending.cut", "after", 1),  # deleted, not committed
    ("service.core.label_log.log:LabelLog.shrink", "before", 1),  # cut, not yet shrunk
    ("service.core.label_log.sqlite:SqliteDatabase.shrink", "after", 1),  # rewritten
]
SEALING = [
    (f"{SEGMENTS}._build", "before", 3),
    ("service.core.files.atomic:sync", "before", 2),  # the built segment has no name yet
    (f"{MEMORY}:KnowledgeMemory.attach", "before", 3),  # built, not in any view
    (f"{SEGMENTS}.discard", "before", 6),  # merged, old segments not deleted
]


@pytest.mark.parametrize(
    ("log", "number"),
    [("PostgreSQL" if number % 4 == 3 else "SQLite", number) for number in range(SCENARIOS)],
)
def test_any_moment(
    new_scenario: Callable[..., Scenario], request: pytest.FixtureRequest, log: str, number: int
) -> None:
    state = request.getfixturevalue("postgres_url") if log == "PostgreSQL" else ""
    crashes = min(CRASHES_PER_SCENARIO, CRASHES - number * CRASHES_PER_SCENARIO)
    seed = f"{SEED}/{number}"
    crash_and_compare(new_scenario(seed=seed, state=state), seed=seed, crashes=crashes)


def test_any_moment_over_two_heads(
    new_scenario: Callable[..., Scenario], unidec_bundle: Path
) -> None:
    """In a bundle of UniDEC, posted labels get keys from the combiner and the classifiers."""
    seed = f"{SEED}/unidec"
    scenario = new_scenario(seed=seed, bundle=unidec_bundle, items=None)
    crash_and_compare(scenario, seed=seed, crashes=2)


def crash_and_compare(scenario: Scenario, *, seed: str, crashes: int) -> None:
    """Kill `crashes` servers while clients write; then compare with a new server's answers."""
    FIGURES.seed = f"KEYMATCH_CRASH_SEED={SEED}"
    chance = random.Random(seed)
    for _ in range(crashes):
        with scenario.server() as server:
            scenario.check(server)
            with scenario.traffic(server):
                sleep(chance.uniform(0, MOST_SECONDS))  # whatever it is doing then
                server.kill()
    with scenario.server() as server:
        scenario.check(server)
        # The server must also seal rows from new writes, not only rows replayed from the log.
        with scenario.traffic(server):
            scenario.wait_for_writes(50)
        scenario.check(server)
        scenario.prove_equal(server)
    scenario.check_log()


def wait_for_death(server: ServerProcess) -> None:
    wait_for(lambda: server.process.poll() == -signal.SIGKILL)


def test_between_the_steps_of_a_write(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="write")
    for point in WRITING:
        with scenario.server(at_call(*point)) as server:
            scenario.check(server)
            with scenario.traffic(server):
                wait_for_death(server)
    scenario.check_restart()


def test_between_the_steps_of_a_seal(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="seal")
    for point in SEALING:
        with scenario.server(at_call(*point)) as server, scenario.traffic(server):
            wait_for_death(server)
        scenario.settle_ledgers()  # the next service may die during a full check
    scenario.check_restart()


def test_during_a_seal_and_while_opening(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="seal")
    with scenario.server() as server, scenario.traffic(server):
        wait_for(lambda: next(scenario.segments.glob(".build-*"), None))
        server.kill()
    with scenario.server(wait=False) as server:
        wait_for(lambda: server.logged("bundle verified"))
        server.kill()
    scenario.check_restart()


def test_while_streams_run(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="streams")
    for client in scenario.clients:
        client.habits = {"stream": 1}
    for lines in (1, 60, 200):
        with scenario.server() as server:
            scenario.check(server)
            with scenario.traffic(server):
                scenario.wait_for_writes(lines)
                server.kill()
    scenario.check_restart()


def test_during_a_snapshot_and_reloads(new_scenario: Callable[..., Scenario], shelf: Path) -> None:
    scenario = new_scenario(seed="snapshot", bundle=shelf / "outdoor")
    with scenario.server() as server, ThreadPoolExecutor(1) as threads:
        with scenario.traffic(server):
            scenario.wait_for_writes(30)
            asked = threads.submit(post, server, "snapshot", "first")
            wait_for(lambda: next(shelf.glob(".first.partial-*"), None))
            server.kill()
        assert isinstance(asked.exception(), GONE)
    with scenario.server() as server:
        scenario.check(server)
        assert post(server, "snapshot", "next").status_code == 200
    # The child may have finished or failed, so the bundle is complete or does not exist.
    if (shelf / "first").exists():
        open_bundle(shelf / "first")
    for when, served in (("before", "outdoor"), ("after", "next")):
        with scenario.server(at_call(SWITCH, when, 1)) as server:
            with scenario.traffic(server), pytest.raises(httpx.TransportError):
                post(server, "reload", "next")
            wait_for_death(server)
        with scenario.server() as server:
            assert server.client.get("/info").json()["bundle"]["name"] == served
            scenario.check(server)
    with scenario.server() as server:
        scenario.prove_equal(server)


def test_during_compactions(new_scenario: Callable[..., Scenario], shelf: Path) -> None:
    """Each compaction is killed while a service writes, and after the last one the service."""
    scenario = new_scenario(seed="compaction", bundle=shelf / "outdoor", patience=True)
    with scenario.server() as server:
        for number, point in enumerate(COMPACTING):
            bundle = f"snapshot-{number}"
            with scenario.traffic(server):
                scenario.wait_for_writes(20)
            for what in ("snapshot", "reload"):
                assert post(server, what, bundle).status_code == 200
            scenario.settle_ledgers()  # reads the events that are to be cut
            with scenario.traffic(server):
                compaction = compact(scenario, shelf / bundle, at_call(*point))
                assert compaction.returncode == -signal.SIGKILL, compaction.stderr
                if point == COMPACTING[-1]:
                    server.kill()
    ended = compact(scenario, shelf / bundle, ("-m", "service"))  # the rest of the last one
    assert ended.returncode == 0, ended.stderr
    assert scenario.first_event() > 20 * len(COMPACTING)
    scenario.check_restart()
    scenario.check_log()


def compact(
    scenario: Scenario, bundle: Path, program: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Cut the events that a snapshot holds; returns the process when it has ended."""
    options = ["log", "--state", str(scenario.state), "--compact", str(bundle)]
    command = [sys.executable, *program, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def post(server: ServerProcess, what: str, bundle: str) -> httpx.Response:
    """Request a snapshot or a reload."""
    return server.client.post(f"/admin/{what}", json={"bundle": bundle})
