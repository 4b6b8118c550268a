"""kill -9 at the moments that chance would seldom find.

What is too short to be watched is hit by a service that kills itself there, see `doomed.py`.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.core.bundle.bundle import open_bundle
from tests.crash import doomed
from tests.crash.client import GONE
from tests.crash.figures import FIGURES
from tests.crash.life import Life
from tests.support.serving import ServerProcess, wait_for

# Where, whether before or after the call, and at which call.
WRITING = [
    ("service.core.label_log.appending:Appending.append", "after", 25),  # written, not committed
    ("service.core.label_log.appending:Appending.remember", "after", 12),  # a key, not committed
    (
        "service.core.memory.knowledge_memory:KnowledgeMemory.publish",
        "before",
        40,
    ),  # committed, not visible
    ("service.engine.writing.writer:Writer._write", "after", 30),  # visible, perhaps not answered
]
SWITCH = "service.engine.writing.writer:Writer._switch_to"
SEALING = [
    ("service.core.memory.segment_store:SegmentStore._build", "before", 3),
    ("service.core.files.atomic:sync", "before", 2),  # the built segment has no name yet
    (
        "service.core.memory.knowledge_memory:KnowledgeMemory.attach",
        "before",
        3,
    ),  # built, not in any view
    (
        "service.core.memory.segment_store:SegmentStore.discard",
        "before",
        6,
    ),  # merged, the old ones left
]


def program(place: str, when: str, count: int) -> Sequence[str]:
    """The command line of a service that dies there."""
    return (str(doomed.__file__), place, when, str(count))


def killed(server: ServerProcess) -> bool:
    FIGURES.kills += server.process.poll() is not None
    return server.process.poll() == -signal.SIGKILL


@pytest.fixture
def aside() -> Iterator[Callable[..., "Future[httpx.Response]"]]:
    """`aside(function, ...)` calls in another thread; its end is awaited."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit


def test_between_the_steps_of_a_write(begin: Callable[..., Life]) -> None:
    life = begin(seed="write")
    for point in WRITING:
        with life.server(program(*point)) as server:
            life.check(server)
            with life.traffic(server):
                wait_for(lambda server=server: killed(server))
    with life.server() as server:
        life.check(server)
        life.prove_equal(server)


def test_between_the_steps_of_a_seal(begin: Callable[..., Life]) -> None:
    life = begin(seed="seal")
    for point in SEALING:
        with life.server(program(*point)) as server, life.traffic(server):
            wait_for(lambda server=server: killed(server))
        life.settle_ledgers()  # a check that asks the next service might see it die meanwhile
    with life.server() as server:
        life.check(server)
        life.prove_equal(server)


def test_during_a_seal_and_while_opening(begin: Callable[..., Life]) -> None:
    life = begin(seed="seal")
    with life.server() as server:
        with life.traffic(server):
            wait_for(lambda: next(life.segments.glob(".build-*"), None))
            server.kill()
    with life.server(wait=False) as server:
        wait_for(lambda: server.logged("bundle verified"))
        server.kill()
    FIGURES.kills += 2
    with life.server() as server:
        life.check(server)
        life.prove_equal(server)


def test_while_streams_run(begin: Callable[..., Life]) -> None:
    life = begin(seed="streams")
    for client in life.clients:
        client.habits = {"stream": 1}
    for lines in (1, 60, 200):
        with life.server() as server:
            life.check(server)
            before = life.writes
            with life.traffic(server):
                wait_for(lambda most=before + lines: life.writes >= most)
                server.kill()
            FIGURES.kills += 1
    with life.server() as server:
        life.check(server)
        life.prove_equal(server)


def test_during_a_snapshot_and_reloads(
    begin: Callable[..., Life], shelf: Path, aside: Callable[..., "Future[httpx.Response]"]
) -> None:
    life = begin(seed="snapshot", bundle=shelf / "outdoor")
    with life.server() as server:
        with life.traffic(server):
            wait_for(lambda: life.writes > 30)
            asked = aside(post, server, "snapshot", "first")
            wait_for(lambda: next(shelf.glob(".first.partial-*"), None))
            server.kill()
        assert isinstance(asked.exception(), GONE)
    FIGURES.kills += 1
    with life.server() as server:
        life.check(server)
        assert post(server, "snapshot", "next").status_code == 200
    # The orphaned child gave up, or had all it needed: a bundle is whole or not there.
    if (shelf / "first").exists():
        open_bundle(shelf / "first")
    for when, served in (("before", "outdoor"), ("after", "next")):
        with life.server(program(SWITCH, when, 1)) as server:
            with life.traffic(server), pytest.raises(httpx.TransportError):
                post(server, "reload", "next")
            wait_for(lambda server=server: killed(server))
        with life.server() as server:
            assert server.client.get("/info").json()["bundle"]["name"] == served
            life.check(server)
    with life.server() as server:
        life.prove_equal(server)


def post(server: ServerProcess, what: str, bundle: str) -> httpx.Response:
    """Ask for a snapshot or a reload."""
    return server.client.post(f"/admin/{what}", json={"bundle": bundle})
