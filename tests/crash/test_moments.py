"""kill -9 at moments that random kills seldom hit; at the shortest, the service kills itself."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.core.bundle.bundle import open_bundle
from tests.crash import self_killing_service
from tests.crash.client import GONE
from tests.crash.scenario import FIGURES, Scenario
from tests.support.serving import ServerProcess, wait_for

pytestmark = pytest.mark.slow

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
SEALING = [
    (f"{SEGMENTS}._build", "before", 3),
    ("service.core.files.atomic:sync", "before", 2),  # the built segment has no name yet
    (f"{MEMORY}:KnowledgeMemory.attach", "before", 3),  # built, not in any view
    (f"{SEGMENTS}.discard", "before", 6),  # merged, old segments not deleted
]


def program(place: str, when: str, count: int) -> Sequence[str]:
    """The command line of a service that kills itself at this call."""
    return (str(self_killing_service.__file__), place, when, str(count))


def killed(server: ServerProcess) -> bool:
    FIGURES.kills += server.process.poll() is not None
    return server.process.poll() == -signal.SIGKILL


@pytest.fixture
def in_thread() -> Iterator[Callable[..., "Future[httpx.Response]"]]:
    """`in_thread(function, ...)` calls a function in a thread; the fixture waits for its end."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit


def test_between_the_steps_of_a_write(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="write")
    for point in WRITING:
        with scenario.server(program(*point)) as server:
            scenario.check(server)
            with scenario.traffic(server):
                wait_for(lambda server=server: killed(server))
    with scenario.server() as server:
        scenario.check(server)
        scenario.prove_equal(server)


def test_between_the_steps_of_a_seal(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="seal")
    for point in SEALING:
        with scenario.server(program(*point)) as server, scenario.traffic(server):
            wait_for(lambda server=server: killed(server))
        scenario.settle_ledgers()  # the next service may die during a full check
    with scenario.server() as server:
        scenario.check(server)
        scenario.prove_equal(server)


def test_during_a_seal_and_while_opening(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="seal")
    with scenario.server() as server:
        with scenario.traffic(server):
            wait_for(lambda: next(scenario.segments.glob(".build-*"), None))
            server.kill()
    with scenario.server(wait=False) as server:
        wait_for(lambda: server.logged("bundle verified"))
        server.kill()
    FIGURES.kills += 2
    with scenario.server() as server:
        scenario.check(server)
        scenario.prove_equal(server)


def test_while_streams_run(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario(seed="streams")
    for client in scenario.clients:
        client.habits = {"stream": 1}
    for lines in (1, 60, 200):
        with scenario.server() as server:
            scenario.check(server)
            before = scenario.writes
            with scenario.traffic(server):
                wait_for(lambda most=before + lines: scenario.writes >= most)
                server.kill()
            FIGURES.kills += 1
    with scenario.server() as server:
        scenario.check(server)
        scenario.prove_equal(server)


def test_during_a_snapshot_and_reloads(
    new_scenario: Callable[..., Scenario],
    shelf: Path,
    in_thread: Callable[..., "Future[httpx.Response]"],
) -> None:
    scenario = new_scenario(seed="snapshot", bundle=shelf / "outdoor")
    with scenario.server() as server:
        with scenario.traffic(server):
            wait_for(lambda: scenario.writes > 30)
            asked = in_thread(post, server, "snapshot", "first")
            wait_for(lambda: next(shelf.glob(".first.partial-*"), None))
            server.kill()
        assert isinstance(asked.exception(), GONE)
    FIGURES.kills += 1
    with scenario.server() as server:
        scenario.check(server)
        assert post(server, "snapshot", "next").status_code == 200
    # The child may have finished or failed, so the bundle is complete or does not exist.
    if (shelf / "first").exists():
        open_bundle(shelf / "first")
    for when, served in (("before", "outdoor"), ("after", "next")):
        with scenario.server(program(SWITCH, when, 1)) as server:
            with scenario.traffic(server), pytest.raises(httpx.TransportError):
                post(server, "reload", "next")
            wait_for(lambda server=server: killed(server))
        with scenario.server() as server:
            assert server.client.get("/info").json()["bundle"]["name"] == served
            scenario.check(server)
    with scenario.server() as server:
        scenario.prove_equal(server)


def post(server: ServerProcess, what: str, bundle: str) -> httpx.Response:
    """Request a snapshot or a reload."""
    return server.client.post(f"/admin/{what}", json={"bundle": bundle})
