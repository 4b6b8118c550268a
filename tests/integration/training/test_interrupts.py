"""A signal makes a training process save its state and print a command that resumes it."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from tests.support.tiny.training import tiny_dataset, write_recipe, write_tiny_checkpoint
from tests.support.waiting import wait_for
from training.datasets import lf_xmc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ENDLESS = ("optimizer.steps=1000000", "validation.every=1000000")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A run that would take hours and validates only at its end."""
    model = write_tiny_checkpoint(tmp_path / "model")
    lf_xmc.write(tiny_dataset(), tmp_path / "data")
    places = ("--data", tmp_path / "data", "--out", tmp_path / "my run")
    recipe = write_recipe(tmp_path, model=model)
    return [*map(str, ("train", recipe, *places)), "--set", *ENDLESS]


def interrupted(arguments: Sequence[str], run: Path, number: int) -> tuple[int, str]:
    """Run the command, send the signal after a new step, and return exit status and last line."""
    status, lines = ended([sys.executable, "-m", "training", *arguments], run, number)
    return status, lines[-1]


def ended(
    command: Sequence[str], run: Path, number: int, *, to_all: bool = False
) -> tuple[int, list[str]]:
    """Run the command, send the signal after a new step, and return exit status and lines.

    With `to_all` the command's child processes get the signal, too, as from a terminal.
    """
    log = run.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "COLUMNS": "300"},
            start_new_session=True,
        )
    before = steps(run)
    wait_for(lambda: process.poll() is not None or steps(run) > before)
    (os.killpg if to_all else os.kill)(process.pid, number)
    status = process.wait(120)
    return status, log.read_text().splitlines()


def steps(run: Path) -> int:
    """Return the number of the newest step in the run's journal."""
    file = run / "metrics.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    return max((orjson.loads(line)["step"] for line in lines), default=0)


def saved_step(run: Path) -> int:
    return int(orjson.loads((run / "last/state.json").read_bytes())["progress"]["step"])


def test_a_signal_saves_the_state_and_the_printed_command_goes_on(
    command: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "my run"
    status, said = interrupted(command, run, signal.SIGINT)
    assert status == 130
    first = saved_step(run)
    assert f"SIGINT: {run}/last has the state of step {first}. Go on with: " in said
    assert (run / "best/modules.json").is_file()

    program, *arguments = shlex.split(said.partition("Go on with: ")[2])
    assert (program, arguments[:2]) == ("keymatch", ["lab", "train"])
    status, said = interrupted(arguments[1:], run, signal.SIGTERM)
    assert status == 143
    assert saved_step(run) > first
    assert said.startswith("SIGTERM: ") and said.endswith(" --resume")


@pytest.mark.parametrize("to_all", [False, True], ids=["to the parent", "from a terminal"])
def test_two_processes_save_one_state_and_say_so_once(
    to_all: bool, command: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "my run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", "-m", "training"]
    status, lines = ended([*launcher, *command], run, signal.SIGINT, to_all=to_all)
    assert status != 0
    said = [line for line in lines if "Go on with: " in line]
    step = saved_step(run)
    assert len(said) == 1
    assert f"SIGINT: {run}/last has the state of step {step}. Go on with: torchrun" in said[0]
    assert step > 0

    _, *arguments = shlex.split(said[0].partition("Go on with: ")[2])
    assert arguments[:4] == ["--nproc-per-node", "2", "-m", "training"]
    again = [*launcher[:4], *arguments]
    status, lines = ended(again, run, signal.SIGTERM, to_all=to_all)
    assert saved_step(run) > step
    assert any(line.startswith("SIGTERM: ") and line.endswith(" --resume") for line in lines)
