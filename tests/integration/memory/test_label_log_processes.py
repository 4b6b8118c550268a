"""Processes that share a label log agree on one order and see each other's events."""

import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.label_logs import Follower, Place, append

PROCESSES, EVENTS = 4, 100


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place for a log that does not exist yet."""
    return Place(tmp_path if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


def appender(place: Place, name: str, count: int) -> subprocess.Popen[str]:
    """Start a process that appends `count` events after it reads a line of input."""
    command = [sys.executable, "-m", "tests.support.label_logs", str(place.state), name, str(count)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def run_at_once(appenders: list[subprocess.Popen[str]]) -> None:
    """Let all processes append at the same moment, and wait until they have ended."""
    for process in appenders:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in appenders:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in appenders:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")


def test_processes_that_append_at_once_agree_on_one_gapless_order(place: Place) -> None:
    """The processes also create the log at the same moment."""
    run_at_once([appender(place, f"p{number}", EVENTS) for number in range(PROCESSES)])
    with closing(place.open()) as log:
        events = list(log.read())  # raises if a number is missing
    assert [event.sequence for event in events] == list(range(1, PROCESSES * EVENTS + 1))
    orders = defaultdict(list)
    for event in events:
        name, _, number = event.body["id"].partition("-")
        orders[name].append(int(number))
    assert orders == {f"p{number}": list(range(EVENTS)) for number in range(PROCESSES)}


def test_a_watcher_sees_what_was_there_and_what_another_process_appends(place: Place) -> None:
    with closing(place.open()) as log:
        append(log, "a")
        follower = Follower(log)
        assert follower.reaches(1)
        run_at_once([appender(place, "other", 3)])
        assert follower.reaches(4)
