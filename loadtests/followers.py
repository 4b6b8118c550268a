"""`python -m loadtests.followers`: what processes that follow a log cost the PostgreSQL server.

One process appends events, one per transaction, while others follow the log as workers do: they
wait for its signals and read each new event. Two arrangements take turns in each round: "one
machine" has all followers on this machine, and "a machine each" lets each follower behave as if it
was alone on its machine. Each measurement has a schema of its own, which is dropped afterwards.
Writes followers.json and followers.md.
"""

from __future__ import annotations

import multiprocessing
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import monotonic, process_time, sleep
from typing import Annotated, Any

import numpy as np
import sqlalchemy as sa
from cyclopts import App

from loadtests.report import Report, Row
from loadtests.resources import cpu_seconds
from service.command_line import open_console, run
from service.core.changes import PutLabel
from service.core.errors import CommandFailed, InvalidInput
from service.core.label_log import LabelLog, open_log
from service.core.label_log import machine as machine_sockets
from service.core.types import NewLabel
from training.commands.options import MANY

ARRANGEMENTS = ("one machine", "a machine each")
DIMENSION = 384  # of the events' vectors
CAUGHT_UP_SECONDS = 120.0

app = App(name="loadtests.followers", help=__doc__)


@app.default
def followers(
    *,
    state: str,
    out: Path,
    followers: Annotated[tuple[int, ...], MANY] = (0, 1, 10, 50),
    rounds: int = 3,
    seconds: float = 5.0,
    rate: float = 20.0,
    idle: bool = False,
) -> int:
    """Measure and report.

    Parameters
    ----------
    state
        URL of a PostgreSQL database in which schemas can be created. A follower needs one
        connection, or two if it listens. CPU time is measured if the server runs on this machine.
    out
        Folder for followers.json and followers.md.
    followers
        Numbers of followers to measure.
    rounds
        Number of measurements of each kind; the report has their medians.
    seconds
        Seconds of the closed loop, and then of the open loop, in each measurement.
    rate
        Appends per second in the open loop, which measures the delay.
    idle
        Followers only listen and read nothing; their delay is not measured.
    """
    if not state.startswith("postgresql"):
        raise InvalidInput("only a log in PostgreSQL has followers: pass --state postgresql://...")
    console, load = open_console(stderr=True), Load(seconds=seconds, rate=rate, idle=idle)
    measured: dict[tuple[int, str], list[Figures]] = {}
    for turn in range(rounds):
        for count in followers:
            for arrangement in ARRANGEMENTS[:: -1 if turn % 2 else 1]:
                if count < 2 and arrangement != ARRANGEMENTS[0]:
                    continue  # both are the same
                console.print(f"round {turn + 1} of {rounds}: {count} followers, {arrangement}")
                with _schema(state) as own:
                    figures = _measure(own, count, arrangement, load)
                measured.setdefault((count, arrangement), []).append(figures)
    Report(
        title="Followers of a log in PostgreSQL",
        settings={"rounds": rounds, **asdict(load)},
        rows=[_row(*key, rounds) for key, rounds in measured.items()],
    ).publish(out, "followers")
    return 0


@dataclass(frozen=True, kw_only=True)
class Load:
    """The settings of each measurement."""

    seconds: float
    rate: float
    idle: bool


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one measurement; times in milliseconds. CPU time is that of the closed loop."""

    commits_per_second: float
    server_cpu: float | None  # per commit; None if the server is not on this machine
    followers_cpu: float  # of all followers together, per commit
    delay: float | None  # until a follower has read the event; None without followers
    delay_p99: float | None


def _measure(state: str, count: int, arrangement: str, load: Load) -> Figures:
    # forkserver: fifty interpreters that share the memory of their imports.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "service.core.label_log.postgres"])
    pipes, processes = [], []
    with closing(open_log(state)) as log:
        for number in range(count):
            near, far = context.Pipe()
            machine = "" if arrangement == ARRANGEMENTS[0] else str(number)
            process = context.Process(
                target=_follow, args=(state, machine, load.idle, far), daemon=True
            )
            process.start()
            far.close()
            pipes.append(near)
            processes.append(process)
        try:
            for pipe in pipes:
                pipe.recv()  # the follower is ready
            server, fast, cpu = _closed_loop(log, pipes, load, postmaster=_postmaster(state))
            delays = _open_loop(log, pipes, load)
        finally:
            for pipe in pipes:
                pipe.close()  # ends the follower
            for process in processes:
                process.join()
    return Figures(
        commits_per_second=fast / load.seconds,
        server_cpu=None if server is None else 1000 * server / fast,
        followers_cpu=1000 * cpu / fast,
        delay=float(np.median(delays)) if delays else None,
        delay_p99=float(np.percentile(delays, 99)) if delays else None,
    )


def _closed_loop(
    log: LabelLog, pipes: Sequence[Connection], load: Load, *, postmaster: int | None
) -> tuple[float | None, int, float]:
    """Append without a pause; return the server's CPU seconds, commits, the followers' seconds."""
    _append(log)
    before = sum(_asked(pipes, "cpu"))
    server = 0.0 if postmaster is None else cpu_seconds(postmaster)
    commits, end = 0, monotonic() + load.seconds
    while monotonic() < end:
        _append(log)
        commits += 1
    if not load.idle:
        _times_of(pipes, log.last_sequence())  # what followers still have to do counts, too
    used = None if postmaster is None else cpu_seconds(postmaster) - server
    return used, commits, sum(_asked(pipes, "cpu")) - before


def _open_loop(log: LabelLog, pipes: Sequence[Connection], load: Load) -> list[float]:
    """Append at regular times; return each follower's delay of each event, in milliseconds.

    A delay begins with the commit, and ends when the follower has read the event.
    """
    if load.idle:
        return []
    begun, start = {}, monotonic()
    for number in range(round(load.seconds * load.rate)):
        sleep(max(0.0, start + number / load.rate - monotonic()))
        sequence, begin = _append(log)
        begun[sequence] = begin
    return [
        1000 * (times[sequence] - begin)
        for times in _times_of(pipes, log.last_sequence())
        for sequence, begin in begun.items()
    ]


def _append(log: LabelLog) -> tuple[int, float]:
    """Append a label; return its number, and the time at which its commit began."""
    label = NewLabel(id=uuid.uuid4().hex, text="a label of a load test")
    vectors = np.ones((1, DIMENSION), np.float16)
    with log.exclusive() as appending:
        change = PutLabel(sequence=appending.last + 1, label=label, vectors=vectors)
        [event] = appending.append([change], encoder="none")
        begin = monotonic()
    return event.sequence, begin


def _asked(pipes: Sequence[Connection], question: object) -> list[Any]:
    for pipe in pipes:
        pipe.send(question)
    return [pipe.recv() for pipe in pipes]


def _times_of(pipes: Sequence[Connection], newest: int) -> list[dict[int, float]]:
    """Wait until each follower has read the event `newest`; return when it read each event."""
    times: list[dict[int, float] | None] = _asked(pipes, newest)
    if None in times:
        raise CommandFailed(f"a follower did not read event {newest} in {CAUGHT_UP_SECONDS:.0f} s")
    return [of_one for of_one in times if of_one is not None]


def _follow(state: str, machine: str, idle: bool, pipe: Connection) -> None:
    """Follow the log in a child process until the pipe is closed; answers its questions."""
    if machine:
        machine_sockets.PREFIX = f"keymatch-{machine}"
    times: dict[int, float] = {}
    last = 0
    with closing(open_log(state)) as log:

        def read(newest: int | None) -> None:
            nonlocal last
            if (log.last_sequence() if newest is None else newest) > last:  # as the engine does
                for event in log.read(after=last):
                    last = event.sequence
                    times[last] = monotonic()

        log.watch((lambda newest: None) if idle else read)
        sleep(1.0)  # it listens by now, or a little later
        pipe.send("ready")
        while True:
            try:
                question = pipe.recv()
            except EOFError:
                return
            if question == "cpu":
                pipe.send(process_time())
                continue
            deadline = monotonic() + CAUGHT_UP_SECONDS
            while last < question and monotonic() < deadline:
                sleep(0.01)
            pipe.send(dict(times) if last >= question else None)


def _postmaster(state: str) -> int | None:
    """Return the process id of the server, None if it is on another machine."""
    with _engine(state).connect() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        try:
            stat = Path(f"/proc/{backend}/stat").read_text()
        except OSError:
            return None
        return int(stat.rpartition(")")[2].split()[1]) if "postgres" in stat else None


def _engine(state: str) -> sa.Engine:
    url = sa.make_url(state).set(drivername="postgresql+psycopg")
    return sa.create_engine(url, poolclass=sa.NullPool)


@contextmanager
def _schema(state: str) -> Iterator[str]:
    """Yield the URL of a schema that is dropped afterwards."""
    name, engine = f"keymatch_followers_{uuid.uuid4().hex}", _engine(state)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    try:
        own = sa.make_url(state).update_query_dict({"options": f"-csearch_path={name}"})
        yield own.render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")


def _row(count: int, arrangement: str, rounds: Sequence[Figures]) -> Row:
    figures: dict[str, Any] = {}
    for name in asdict(rounds[0]):
        values = [getattr(one, name) for one in rounds]
        figures[name] = None if None in values else median(values)
    said = [f"{figures['commits_per_second']:.0f} commits/s"]
    if figures["server_cpu"] is not None:
        said.append(f"{figures['server_cpu']:.2f} ms of the server's CPU time per commit")
    if count:
        said.append(f"{figures['followers_cpu']:.2f} ms of the followers'")
    if figures["delay"] is not None:
        said.append(f"delay p50 {figures['delay']:.1f} ms, p99 {figures['delay_p99']:.1f} ms")
    return Row(
        what=f"{count} followers" + (f", {arrangement}" if count > 1 else ""),
        goal="-",
        measured=", ".join(said),
        figures={**figures, "rounds": [asdict(one) for one in rounds]},
    )


if __name__ == "__main__":
    sys.exit(run(app))
