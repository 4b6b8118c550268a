"""The course of a soak: one service over one label log, before and after a kill.

Before the kill, a snapshot is written and served under load. After the restart, the service replays
the log under the same load; from then on its memory and open files must not grow.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

from loadtests.clients.connection import Connection, get, post, require
from loadtests.queries import distinct
from loadtests.resources import encoding_children, process_tree, resident
from loadtests.soak import clients
from loadtests.soak.clients import Client
from loadtests.soak.ledger import Ledger, Shown
from service.child_server import Server, running_server
from service.core.label_log import open_log

SNAPSHOT_AT, KILL_AFTER = 0.1, 0.1  # shares of the time: start to snapshot, reload to kill
BEFORE, AFTER = "before the kill", "after it"
OWNERS = {BEFORE: "a", AFTER: "b"}  # id prefixes before and after the restart
WARM_UP = 0.15  # share of the whole time; samples this soon after the restart are not judged
SNAPSHOT_SECONDS = 3_600.0
SAMPLE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Requests per second of each kind."""

    reads: float = 40.0
    labels: float = 4.0  # requests with four labels each
    clicks: float = 10.0  # some are negative pairs, some are unlearned
    rules: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The memory and open files of the processes that serve, `at` seconds after the start."""

    at: float
    private: float  # megabytes
    shared: float  # megabytes, of the process that maps most
    descriptors: int


@dataclass(eq=False)
class Course:
    """The record of a soak; times are in seconds since the start."""

    ledger: Ledger = field(default_factory=Ledger)
    samples: list[Sample] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    events: dict[str, float] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    # When -> number of labels and rules that differ from what was acknowledged.
    differing: dict[str, int] = field(default_factory=dict)
    lost: int = 0  # number of acknowledged writes that the log lacks
    start: float = field(default_factory=monotonic)

    def note(self, event: str) -> None:
        """Record when something happened."""
        self.events[event] = monotonic() - self.start

    def judged(self, seconds: float) -> list[Sample]:
        """Return the samples after the restart and its warm-up, in a course of `seconds`."""
        first = self.events["restarted"] + WARM_UP * seconds
        return [sample for sample in self.samples if first <= sample.at]


class _Killed(Exception):
    """Ends the part before the restart."""


def run_course(
    bundle: Path, folder: Path, texts: Sequence[str], *, seconds: float, rates: Rates
) -> Course:
    """Serve a copy of `bundle` in `folder` for about `seconds`.

    A snapshot on a busy machine may take minutes; the time for it and the reload is added.
    """
    shelf, state = folder / "bundles", folder / "state"
    shutil.copytree(bundle, shelf / "first")
    config = folder / "soak.toml"
    # Small blocks, so that dozens of them are sealed and merged within the time. The log is checked
    # as often, first within the warm-up, since the first check leaves five megabytes behind.
    config.write_text("[engine]\nseal_rows = 2048\nlog_check_minutes = 2.0\n")
    course, options = Course(), ["--config", str(config), "--no-access-log"]
    serving = partial(running_server, shelf / "first", state=state, options=options)
    with suppress(_Killed), serving() as server, _loaded(course, server, texts, rates, BEFORE):
        sleep(SNAPSHOT_AT * seconds)
        _ask(server, "/admin/snapshot", {"bundle": "second"})
        course.note("snapshot written")
        _ask(server, "/admin/reload", {"bundle": "second"})
        course.note("snapshot served")
        sleep(KILL_AFTER * seconds)
        server.process.kill()
        course.note("killed")
        sleep(1)  # lets clients see their broken connections
        raise _Killed
    with serving() as server:
        course.differing["at the restart"] = _differing(server, course.ledger)
        with _loaded(course, server, texts, rates, AFTER):
            course.note("restarted")
            sleep(max(0.0, (1 - SNAPSHOT_AT - KILL_AFTER) * seconds))
            course.note("over")
        course.differing["at the end"] = _differing(server, course.ledger)
    log = open_log(state, create=False)
    course.lost = len(course.ledger.lost(log.read()))
    log.close()
    return course


@contextmanager
def _loaded(
    course: Course, server: Server, texts: Sequence[str], rates: Rates, life: str
) -> Iterator[None]:
    """Run the clients and take samples during the block."""
    stop, owner, ledger = Event(), OWNERS[life], course.ledger
    labels = clients.write_labels(ledger, distinct(texts, seed=2), owner=owner)
    turns = {
        "reads": (clients.read(distinct(texts, seed=1)), rates.reads),
        "labels": (labels, rates.labels),
        "clicks": (clients.write_clicks(ledger, owner=owner), rates.clicks),
        "rules": (clients.write_rules(ledger, distinct(texts, seed=3), owner=owner), rates.rules),
        "operations": (clients.operate, 1.0),
    }
    running = [
        Client(name, turn, port=server.port, rate=rate, stop=stop)
        for name, (turn, rate) in turns.items()
    ]
    sampling = Thread(target=_sample, args=(course, server.pid, stop), name="sampler", daemon=True)
    for thread in (*running, sampling):
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in (*running, sampling):
            thread.join()
        for client in running:
            for answer, times in client.answers.items():
                course.answers[f"{life}: {answer}"] += times
            course.slowest[f"{client.name}, {life}"] = client.slowest


def _sample(course: Course, pid: int, stop: Event) -> None:
    """Take samples of a server until `stop` is set; its encoding children come and go."""
    while not stop.wait(SAMPLE_SECONDS):
        serving = set(process_tree(pid)) - set(encoding_children(pid))
        with suppress(OSError, KeyError):  # the server was killed, or is just being replaced
            memories = [resident(process) for process in serving]
            files = [list(Path(f"/proc/{process}/fd").iterdir()) for process in serving]
            course.samples.append(
                Sample(
                    at=monotonic() - course.start,
                    private=sum(memory.private for memory in memories),
                    shared=max(memory.shared for memory in memories),
                    descriptors=sum(map(len, files)),
                )
            )


def _ask(server: Server, path: str, document: dict[str, str]) -> None:
    with Connection(server.port) as connection:
        connection.socket.settimeout(SNAPSHOT_SECONDS)
        require(connection.ask(post(path, document)))


def _differing(server: Server, ledger: Ledger) -> int:
    """Return how many labels and rules differ from what was last acknowledged."""
    newest = max(ledger.acknowledged, default=0)
    with Connection(server.port) as connection:
        # Any process may answer: wait until this one has read what another one acknowledged.
        require(connection.ask(post("/predict", {"queries": ["tent"], "min_version": newest})))
        answers = [
            (connection.ask(get(path)), possible) for path, possible in ledger.possible().items()
        ]
    return sum(_shown(answer) not in possible for answer, possible in answers)


def _shown(answer: tuple[int, bytes]) -> Shown | None:
    if answer[0] == 404:
        return None
    document = require(answer)
    text = document["when"]["query"] if "when" in document else document["text"]
    return text, document.get("boost", 1.0)
