"""The course of a soak: one service over one label log, before and after a kill.

Before the kill, a snapshot is written and served under load. After the restart, the service replays
the log under the same load; from then on its memory and open files must not grow.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from urllib.parse import quote

from loadtests.clients.connection import Connection, get, post, require
from loadtests.queries import distinct
from loadtests.soak import clients
from loadtests.soak.clients import Client
from loadtests.soak.ledger import Ledger
from loadtests.soak.samples import Sample, Sampler
from service.child_server import Server, running_server
from service.core.label_log import open_log

SNAPSHOT_AT, KILL_AFTER = 0.1, 0.1  # shares of the time: start to snapshot, reload to kill
BEFORE, AFTER = "before the kill", "after it"
OWNERS = {BEFORE: "a", AFTER: "b"}  # id prefixes before and after the restart
WARM_UP = 0.15  # share of the whole time; samples this soon after the restart are not judged
SNAPSHOT_SECONDS = 3_600.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Requests per second of each kind."""

    reads: float = 40.0
    labels: float = 4.0  # requests with four labels each
    clicks: float = 10.0


@dataclass(eq=False)
class Course:
    """The record of a soak; times are in seconds since the start."""

    ledger: Ledger = field(default_factory=Ledger)
    samples: list[Sample] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    events: dict[str, float] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    missing_labels: dict[str, int] = field(
        default_factory=dict
    )  # when -> number of labels that differ from what was acknowledged
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
    course = Course()
    life = partial(_life, course, shelf, state, config, texts, rates)
    with suppress(_Killed), life(BEFORE) as server:
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
    with life(AFTER):
        course.note("restarted")
        sleep(max(0.0, (1 - SNAPSHOT_AT - KILL_AFTER) * seconds))
        course.note("over")
    log = open_log(state, create=False)
    course.lost = len(course.ledger.lost(log.read()))
    log.close()
    return course


@contextmanager
def _life(
    course: Course,
    shelf: Path,
    state: Path,
    config: Path,
    texts: Sequence[str],
    rates: Rates,
    life: str,
) -> Iterator[Server]:
    """Serve with running clients; they are stopped before the server is."""
    stop, options = Event(), ["--config", str(config), "--no-access-log"]
    with running_server(shelf / "first", state=state, options=options) as server:
        # Compare the labels before anything is written; before the restart there are none yet.
        course.missing_labels["at the restart"] = _missing(server, course.ledger.labels())
        threads = _clients(course, server.port, texts, rates, stop, life)
        sampler = Sampler(
            server.pid, server.port, course.samples, start=course.start, seconds=1.0, stop=stop
        )
        for thread in (*threads, sampler):
            thread.start()
        try:
            yield server
        finally:
            stop.set()
            for thread in (*threads, sampler):
                thread.join()
            for client in threads:
                course.answers.update(
                    {f"{life}: {answer}": times for answer, times in client.answers.items()}
                )
                course.slowest[f"{client.name}, {life}"] = client.slowest
        course.missing_labels["at the end"] = _missing(server, course.ledger.labels())


def _clients(
    course: Course, port: int, texts: Sequence[str], rates: Rates, stop: Event, life: str
) -> list[Client]:
    owner = OWNERS[life]
    turns = {
        "reads": (clients.read(distinct(texts, seed=1)), rates.reads),
        "labels": (
            clients.write_labels(course.ledger, distinct(texts, seed=2), owner=owner),
            rates.labels,
        ),
        "clicks": (clients.write_clicks(course.ledger, owner=owner), rates.clicks),
        "operations": (clients.operate(), 1.0),
    }
    return [
        Client(name, turn, port=port, rate=rate, stop=stop) for name, (turn, rate) in turns.items()
    ]


def _ask(server: Server, path: str, document: dict[str, str]) -> None:
    with Connection(server.port) as connection:
        connection.socket.settimeout(SNAPSHOT_SECONDS)
        require(connection.ask(post(path, document)))


def _missing(server: Server, labels: Mapping[str, set[str | None]]) -> int:
    """Return how many labels differ from what was last acknowledged."""
    with Connection(server.port) as connection:
        answers = [
            (connection.ask(get(f"/labels/{quote(label_id)}")), possible)
            for label_id, possible in labels.items()
        ]
    return sum(
        (None if answer[0] == 404 else require(answer)["text"]) not in possible
        for answer, possible in answers
    )
