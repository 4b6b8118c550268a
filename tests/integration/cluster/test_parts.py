"""Parts on a cluster: what dies costs only its part, and an error is one sentence."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from service.core.errors import InvalidConfig
from service.core.processes.ray_cluster import joined
from tests.integration.cluster.conftest import SECONDS
from tests.support.waiting import wait_for

COUNT = 4
SQUARES = "1 4 9 16"

Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start()` starts the command of `cluster_work`, which is steered by files in `tmp_path`."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.support.cluster_work", str(tmp_path), str(COUNT)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for command in started:
        command.kill()
        command.communicate()


def calls(folder: Path) -> list[tuple[int, int]]:
    """Return the part and the process of each call."""
    with suppress(FileNotFoundError):
        lines = (folder / "calls").read_text().splitlines()
        return [(int(part), int(pid)) for part, pid in (line.split() for line in lines)]
    return []


def numbers(folder: Path) -> list[int]:
    return sorted(part for part, _ in calls(folder))


def runs(pid: int) -> bool:
    """Return whether a process runs; one that has ended may not be waited for yet."""
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_worker_costs_its_part(start: Start, tmp_path: Path) -> None:
    held = tmp_path / "hold-2"
    held.touch()
    command = start()
    pid = wait_for(lambda: dict(calls(tmp_path)).get(2))
    os.kill(pid, signal.SIGKILL)
    held.unlink()
    said, complained = command.communicate(timeout=SECONDS)
    assert command.returncode == 0, complained
    assert said.splitlines()[-1] == SQUARES  # Ray may say before it that a worker died
    assert numbers(tmp_path) == [1, 2, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_command_goes_on(start: Start, tmp_path: Path) -> None:
    held, work = tmp_path / f"hold-{COUNT}", tmp_path / "work"
    held.touch()
    command = start()
    pid = wait_for(lambda: dict(calls(tmp_path)).get(COUNT))
    wait_for(lambda: all((work / f"{number}").exists() for number in range(1, COUNT)))
    command.kill()
    command.communicate()
    wait_for(lambda: not runs(pid))  # a command's workers end with it
    held.unlink()
    command = start()
    said, complained = command.communicate(timeout=SECONDS)
    assert command.returncode == 0, complained
    assert said.splitlines()[-1] == SQUARES  # Ray may say before it that a worker died
    assert numbers(tmp_path) == [1, 2, 3, 4, 4]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_error_of_a_part_ends_the_command_with_its_sentence(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "refuse-3").touch()
    command = start()
    _, complained = command.communicate(timeout=SECONDS)
    assert command.returncode == 1
    assert complained.splitlines()[-1] == "error: 3 is refused"
    assert "Traceback" not in complained


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray head answers at 127.0.0.1:1: "),
        ("head", "--cluster 'head' is neither 'auto' nor HOST:PORT of a Ray head"),
        ("head:port", "--cluster 'head:port' is neither 'auto' nor HOST:PORT"),
    ],
)
def test_without_a_head_nothing_begins(address: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said), joined(address):
        pytest.fail("the block was entered")
