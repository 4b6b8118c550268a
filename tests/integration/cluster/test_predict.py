"""`predict --cluster` writes the bytes of one process, and a dead worker costs only its part."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loadtests.resources import process_tree
from service.__main__ import app
from service.bulk.run import rows_of_part
from tests.integration.cluster.conftest import SECONDS
from tests.support.commands import Refused, run, status_of
from tests.support.serving import local_service
from tests.support.waiting import wait_for

ROWS = 6_000
SMALL_PARTS = ("--explain", "--top-k", 1000)  # a part then has six rows
PARTS = ROWS // rows_of_part(1000, explain=True)
WORDS = ("boots", "tent", "warm", "trail", "lamp", "gas", "ice", "axe", "for", "two", "water")

Command = Callable[..., list[object]]
Start = Callable[[list[str]], "subprocess.Popen[str]"]


@pytest.fixture
def predict(tiny_bundle_folder: Path, tmp_path: Path) -> Command:
    """`predict(out, ...)` answers a file with `ROWS` rows, of which some are empty."""
    table = tmp_path / "queries.csv"
    with table.open("w", newline="") as file:
        rows = [("query",), *((f"{WORDS[n % 11]} {WORDS[n // 11 % 11]} {n}",) for n in range(ROWS))]
        rows[70] = rows[700] = ("  ",)
        csv.writer(file).writerows(rows)
    places = ("--bundle", tiny_bundle_folder, "--input", table, "--query", "query")
    skip = ("--on-bad-row", "skip")
    return lambda out, *more: ["predict", *places, *skip, "--out", tmp_path / out, *more]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(command)` starts a process, which ends with the test at the latest."""
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str]) -> "subprocess.Popen[str]":
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        started.append(subprocess.Popen(command, stderr=pipe, stdout=nowhere, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_answers_are_those_of_one_process(
    predict: Command, tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    with local_service(tiny_bundle_folder, tmp_path / "state") as service:
        assert service.post("/labels", {"labels": [{"text": "trail lamp"}]}).status_code == 200
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        more = ("--state", tmp_path / "state", "--top-k", 300)
        assert status_of(app, *predict(f"whole-{name}", *more)) == 0
        ended = run("service", *predict(name, *more, "--cluster", "auto"), seconds=SECONDS)
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
        assert "2 of them skipped; bundle tiny, version 1; scores are sums of" in ended.stderr
    assert b"trail lamp" in (tmp_path / "out.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_dead_workers_and_an_interruption_cost_their_parts(
    predict: Command, start: Start, tmp_path: Path
) -> None:
    assert status_of(app, *predict("whole.jsonl", *SMALL_PARTS)) == 0
    on_cluster = [str(word) for word in predict("out.jsonl", *SMALL_PARTS, "--cluster", "auto")]
    command = [sys.executable, "-m", "service", *on_cluster]
    folder = tmp_path / ".out.jsonl.predict"

    def finished() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in folder.glob("*.part")}

    first = start(command)
    wait_for(lambda: len(finished()) > 3)
    os.kill(wait_for(lambda: next(answering(first.pid), None)), signal.SIGKILL)
    before = len(finished())
    wait_for(lambda: len(finished()) > before)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=SECONDS)
    assert first.returncode == 143, said
    kept = finished()
    assert 4 < len(kept) < PARTS
    assert "the same command goes on there" in said.splitlines()[-1]

    again = start(command)
    wait_for(lambda: len(finished()) > len(kept))
    assert kept.items() <= finished().items()
    _, said = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, said
    assert "out.jsonl: goes on after" in said
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def answering(pid: int) -> Iterator[int]:
    """Yield the workers of a command that are answering a part now."""
    for process in process_tree(pid):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::answer_part"):
                yield process


def test_a_cluster_that_does_not_answer_is_refused(
    refused: Refused, predict: Command, tmp_path: Path
) -> None:
    said = refused(app, *predict("out.csv", "--cluster", "127.0.0.1:1"))
    assert said == "no Ray head answers at 127.0.0.1:1: Connection refused"
    assert [path.name for path in tmp_path.iterdir()] == ["queries.csv"]
