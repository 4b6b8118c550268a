"""`python -m loadtests.soak`: half an hour of mixed load; reports losses, leaks and refusals.

Predictions, labels, deletions, clicks, negative and unlearned pairs, rules, probes and scrapes
continue while blocks of live rows are sealed and merged, a snapshot is written and served, and the
process is killed and restarted. The service then replays the log under the same load; from then on
its memory and open files must not grow.
Reports acknowledged writes that are missing, answers other than 200, and the growth of memory and
open files after the restart and its warm-up. Writes soak.json (with all samples) and soak.md.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, perf_counter, sleep

import orjson

from loadtests.connection import Connection, RequestFailed, get, post, predict, require
from loadtests.harness import Scenario, option, say
from loadtests.report import Row
from loadtests.resources import encoding_children, process_tree, resident_of
from loadtests.soak_writes import Ledger, Shown, Turns, write_clicks, write_labels, write_rules
from loadtests.traffic import repeated
from service.child_server import Server, running_server
from service.core.errors import CommandFailed
from service.core.label_log import open_log

DRIFT = 0.02  # allowed relative growth of the memory
JUDGED_SAMPLES = 8  # at least, so that each compared window has two samples
BROKEN = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "RequestFailed")
SNAPSHOT_AT, KILL_AFTER = 0.1, 0.1  # shares of the time: start to snapshot, reload to kill
BEFORE, AFTER = "before the kill", "after it"
OWNERS = {BEFORE: "a", AFTER: "b"}  # id prefixes before and after the restart
WARM_UP = 0.15  # share of the whole time; samples this soon after the restart are not judged
SNAPSHOT_SECONDS = 3_600.0
SAMPLE_SECONDS = 1.0
# Small blocks, so that dozens of them are sealed and merged within the time. The log is checked as
# often, first within the warm-up, since the first check leaves five megabytes behind.
CONFIG = "[engine]\nseal_rows = 2048\nlog_check_minutes = 2.0\n"


@dataclass(frozen=True, kw_only=True)
class Soak(Scenario):
    """One service over one label log, before and after a kill."""

    title = "Soak"
    judged = True

    minutes: float = option(
        "Duration in minutes, without the time for the snapshot and the restart.", 30.0
    )
    reads: float = option("Predictions per second.", 40.0)
    labels: float = option("Requests per second, with four labels each.", 4.0)
    clicks: float = option(
        "Clicks per second; some are negative pairs, and some are unlearned.", 10.0
    )
    rules: float = option("Rules put or deleted per second.", 1.0)

    def rows(self) -> Iterator[Row]:
        """Run the whole course, then judge it."""
        say(f"{self.minutes:g} minutes of mixed load ...")
        course, seconds = Course(), 60 * self.minutes
        with TemporaryDirectory(prefix="keymatch-soak-") as folder:
            self._run(course, Path(folder), seconds)
        yield from rows_of(course, seconds=seconds)

    def _run(self, course: Course, folder: Path, seconds: float) -> None:
        """Serve a copy of the bundle in `folder` for about `seconds`.

        A snapshot on a busy machine may take minutes; the time for it and the reload is added.
        """
        bundle, state = folder / "bundles" / "first", folder / "state"
        shutil.copytree(self.bundle, bundle)
        config = folder / "soak.toml"
        config.write_text(CONFIG)
        options = ["--config", str(config), "--no-access-log"]
        with (
            suppress(_Killed),
            running_server(bundle, state=state, options=options) as server,
            self._loaded(course, server, BEFORE),
        ):
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
        with running_server(bundle, state=state, options=options) as server:
            course.differing["at the restart"] = _differing(server, course.ledger)
            with self._loaded(course, server, AFTER):
                course.note("restarted")
                sleep(max(0.0, (1 - SNAPSHOT_AT - KILL_AFTER) * seconds))
                course.note("over")
            course.differing["at the end"] = _differing(server, course.ledger)
        log = open_log(state, create=False)
        course.lost = len(course.ledger.lost(log.read()))
        log.close()

    @contextmanager
    def _loaded(self, course: Course, server: Server, life: str) -> Iterator[None]:
        """Run the clients and take samples during the block."""
        stop, owner = Event(), OWNERS[life]
        turns = {
            "reads": (read(self.texts(order=1)), self.reads),
            "labels": (write_labels(self.texts(order=2), owner=owner), self.labels),
            "clicks": (write_clicks(owner=owner), self.clicks),
            "rules": (write_rules(self.texts(order=3), owner=owner), self.rules),
            "operations": (operate(), 1.0),
        }
        clients = [
            Client(name, one, course.ledger, port=server.port, rate=rate, stop=stop)
            for name, (one, rate) in turns.items()
        ]
        with ExitStack() as ending:
            for client in clients:
                client.start()
                ending.callback(client.join)
            ending.enter_context(repeated(course.sampler(server.pid), seconds=SAMPLE_SECONDS))
            ending.callback(stop.set)
            yield
        for client in clients:
            for answer, times in client.answers.items():
                course.answers[f"{life}: {answer}"] += times
            course.slowest[f"{client.name}, {life}"] = client.slowest


class _Killed(Exception):
    """Ends the part before the restart."""


# Clients ----------------------------------------------------------------------------------------


class Client(Thread):
    """Sends a request of `turns` `rate` times per second; reconnects if its connection breaks."""

    def __init__(
        self, name: str, turns: Turns, ledger: Ledger, *, port: int, rate: float, stop: Event
    ) -> None:
        """Send to `port` from `start` on, until `stop` is set; record all writes."""
        super().__init__(name=name, daemon=True)
        self.answers: Counter[str] = Counter()  # HTTP status or error name -> count
        self.slowest = 0.0  # seconds of the slowest answer
        self._turns, self._ledger, self._port = turns, ledger, port
        self._pause, self._stop_asked = 1 / rate, stop

    def run(self) -> None:
        """Send until asked to stop."""
        connection: Connection | None = None
        for request, writes in self._turns:
            if self._stop_asked.wait(self._pause):
                break
            try:
                connection = connection or Connection(self._port)
            except OSError as error:
                self.answers[type(error).__name__] += 1
                continue
            began = perf_counter()
            try:
                status, body = connection.ask(request)
            except (OSError, RequestFailed) as error:
                self.answers[type(error).__name__] += 1
                self._ledger.sent_without_answer(writes)
                connection.close()
                connection = None
                continue
            self.slowest = max(self.slowest, perf_counter() - began)
            self.answers[str(status)] += 1
            if status == 200 and writes:
                self._ledger.acknowledge(orjson.loads(body)["version"], writes)
        if connection is not None:
            connection.close()


def read(queries: Iterator[str]) -> Turns:
    """Predict one query per request; every now and then eight queries with evidence."""
    while True:
        eight = [next(queries) for _ in range(8)]
        body = {"queries": eight, "explain": True, "deadline_ms": 10_000}
        yield post("/predict", body), []
        for _ in range(19):
            yield predict(next(queries)), []


def operate() -> Turns:
    """Send the requests of probes and dashboards."""
    while True:
        for path in ("/health/ready", "/metrics", "/info", "/labels?limit=50"):
            yield get(path), []


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


# What is recorded, and how it is judged ---------------------------------------------------------


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

    def sampler(self, pid: int) -> Callable[[], None]:
        """Return a function that takes a sample; a server's encoding children come and go."""

        def sample() -> None:
            serving = set(process_tree(pid)) - set(encoding_children(pid))
            with suppress(OSError):  # the server was killed, or is just being replaced
                files = [list(Path(f"/proc/{process}/fd").iterdir()) for process in serving]
                self.samples.append(
                    Sample(
                        at=monotonic() - self.start,
                        **asdict(resident_of(serving)),
                        descriptors=sum(map(len, files)),
                    )
                )

        return sample


def rows_of(course: Course, *, seconds: float) -> Iterator[Row]:
    """Judge a course of `seconds`; raises `CommandFailed` if it was too short."""
    acknowledged, differing = len(course.ledger.acknowledged), sum(course.differing.values())
    yield Row(
        what=f"of {acknowledged:,} acknowledged writes: missing in the log,"
        " labels and rules not as acknowledged at the restart and at the end",
        goal="0, 0",
        measured=f"{course.lost}, {differing}",
        met=not course.lost and not differing,
        figures={"acknowledged": acknowledged, **course.differing},
    )
    wrong = {
        answer: times
        for answer, times in course.answers.items()
        if not answer.endswith(": 200")
        # Only the kill before the restart may break connections.
        and not (answer.startswith(BEFORE) and answer.rpartition(": ")[2] in BROKEN)
    }
    yield Row(
        what="answers other than 200, but for connections that the kill broke",
        goal="none",
        measured="; ".join(f"{answer}: {times}" for answer, times in wrong.items())
        or f"none of {sum(course.answers.values()):,}",
        met=not wrong,
        figures=dict(course.answers),
    )
    warm = course.events["restarted"] + WARM_UP * seconds
    judged = [sample for sample in course.samples if warm <= sample.at]
    if len(judged) < JUDGED_SAMPLES:
        raise CommandFailed(f"{len(judged)} samples after the warm-up are too few; more --minutes")
    first, last = quarters([sample.private for sample in judged])
    mapped = quarters([sample.shared for sample in judged])
    growth = last / first - 1
    yield Row(
        what="growth of private memory after the warm-up, first to last quarter",
        goal=f"<= {DRIFT:.0%}",
        measured=f"{growth:+.1%} ({first:.0f} to {last:.0f} MB);"
        f" mapped files {mapped[0]:.0f} to {mapped[1]:.0f} MB",
        met=growth <= DRIFT,
        figures={"private": growth, "mapped": mapped, "samples": course.samples},
    )
    first, last = quarters([sample.descriptors for sample in judged])
    most = max(sample.descriptors for sample in judged[: len(judged) // 2])
    yield Row(
        what="open files, first to last quarter",
        goal=f"last <= {most}, the most of the first half",
        measured=f"{first:.0f} to {last:.0f}",
        met=last <= most,
        figures={"first": first, "last": last},
    )
    for what, times in (("slowest answers", course.slowest), ("events", course.events)):
        measured = "; ".join(f"{name}: {value:.2f} s" for name, value in times.items())
        yield Row(what=what, measured=measured, figures=times)


def quarters(figures: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the first and of the last quarter of the figures."""
    size = max(1, round(len(figures) / 4))
    return median(figures[:size]), median(figures[-size:])


if __name__ == "__main__":
    Soak.command()
