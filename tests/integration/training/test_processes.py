"""Processes that train: two equal one, and a signal saves a state that can be resumed."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file

from service.command_line import Interrupted, run
from tests.support.tiny.training import losses, tiny_dataset, write_recipe, write_tiny_checkpoint
from tests.support.two_ranks import ROOT, run_on_two_ranks
from tests.support.waiting import wait_for
from training.__main__ import app
from training.checkpoints.run_json import saved_step
from training.datasets import lf_xmc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ENDLESS = ("optimizer.steps=1000000", "validation.every=1000000")
STEPS = ("encoder.dropout=0.0", "optimizer.steps=5")
MINED = ("batch.hard_negatives=1", "refresh.every=2", "refresh.top=4", "ngrams.buckets=512")
HEAD = ("encoder.frozen=true", "optimizer.clip=0.01", "optimizer.head_learning_rate=0.05")
CACHED = "optimizer.gradient_cache=true"
IRENE = ("system.name=irene", "system.dropout=0.0")
RUNS = {  # run -> settings; one process and two processes train each
    "plain": (*STEPS, *MINED),
    "cached": (*STEPS, *MINED, CACHED),
    "one-versus-all": (*STEPS, *HEAD, "system.name=one-versus-all"),
    "irene": (*STEPS, *HEAD, *IRENE),
    "dexa": (*STEPS, "system.name=dexa", "optimizer.head_learning_rate=0.05"),
}

Command = Callable[[str, str], list[str]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """`command(name, out)` is the command that trains the run `name` into the folder `out`."""
    folder = tmp_path_factory.mktemp("ranks")
    recipe = write_recipe(folder, model=write_tiny_checkpoint(folder))
    lf_xmc.write(tiny_dataset(), folder / "colours")

    def command_of(name: str, out: str) -> list[str]:
        places = ["--data", str(folder / "colours"), "--out", str(folder / out)]
        return ["train", str(recipe), *places, "--set", *RUNS[name]]

    return command_of


@pytest.fixture(scope="module")
def by_two(command: Command) -> Callable[[str], tuple[Path, Path]]:
    """Return a run's folders by one process and by two; the latter are all trained in one start."""
    run_on_two_ranks([command(name, f"{name}-two") for name in RUNS])

    def folders(name: str) -> tuple[Path, Path]:
        assert run(app, command(name, f"{name}-one")) == 0
        return out_of(command(name, f"{name}-one")), out_of(command(name, f"{name}-two"))

    return folders


def out_of(command: list[str]) -> Path:
    return Path(command[command.index("--out") + 1])


@pytest.mark.parametrize("name", ["plain", "cached"])
def test_two_ranks_have_the_losses_of_one(
    name: str, by_two: Callable[[str], tuple[Path, Path]]
) -> None:
    one, two = by_two(name)

    assert losses(one) == pytest.approx(losses(two), rel=1e-4)


@pytest.mark.parametrize("name", ["one-versus-all", "irene", "dexa"])
def test_two_ranks_move_a_head_as_one_does(
    name: str, by_two: Callable[[str], tuple[Path, Path]]
) -> None:
    one, two = by_two(name)

    assert_same(*(load_file(folder / "best" / "own.safetensors") for folder in (one, two)))


ONE_RANK_DIVERGES = """
import sys

import torch

from service.command_line import run
from training.__main__ import app
from training.loop.model import TrainedModel
from training.ranks import leave_run, process_of_run

backward, calls = TrainedModel.backward, []


def planted(self, *batch, **options):
    calls.append(1)
    loss = backward(self, *batch, **options)
    wrong = len(calls) == 3 and process_of_run()[0] == 1
    return torch.full_like(loss, torch.nan) if wrong else loss


TrainedModel.backward = planted
try:
    status = run(app, sys.argv[1:])
finally:
    leave_run()
sys.exit(status)
"""


def test_ranks_stop_together_if_the_loss_of_one_is_not_finite(
    command: Command, tmp_path: Path
) -> None:
    script = tmp_path / "planted.py"
    script.write_text(ONE_RANK_DIVERGES)
    diverging = [*command("plain", "diverged"), "validation.every=2"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", str(script), *diverging]
    ended = subprocess.run(launcher, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ended.returncode != 0
    said = [line for line in ended.stderr.splitlines() if "is not finite at step 3" in line]
    assert len(said) == 2, ended.stderr[-2000:]  # one from each rank
    out = out_of(diverging)
    assert len(losses(out)) == 2
    assert (out / "best/modules.json").is_file() and (out / "last/state.json").is_file()


def test_a_run_goes_on_with_another_number_of_ranks(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the run goes on, classifiers and their moments are split over two ranks."""
    from training.loop.trainer import Trainer

    every = ["validation.every=2"]
    unbroken, broken = command("irene", "unbroken") + every, command("irene", "broken") + every
    assert run(app, unbroken) == 0
    take_step = Trainer.take_step

    def interrupted(self: Trainer, number: int) -> None:
        if number == 3:
            raise Interrupted(signal.SIGINT)
        take_step(self, number)

    monkeypatch.setattr(Trainer, "take_step", interrupted)
    assert run(app, broken) == 130  # the status of an interrupted command

    run_on_two_ranks([[*broken[:2], "--resume", *broken[2:]]])

    for file in ("weights.safetensors", "optimizer.safetensors"):
        assert_same(*(load_file(out_of(each) / "last" / file) for each in (unbroken, broken)))


def assert_same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    """Assert equality up to rounding; the bias of attention's keys is noise and left out."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        other = two[name]
        if name.endswith("attention.inward.bias"):
            third = len(value) // 3  # queries, keys, values
            value, other = (np.delete(bias, np.s_[third : 2 * third]) for bias in (value, other))
        assert value == pytest.approx(other, abs=1e-5), name


@pytest.fixture
def endless(tmp_path: Path) -> list[str]:
    """A run that would take hours and validates only at its end."""
    model = write_tiny_checkpoint(tmp_path / "model")
    lf_xmc.write(tiny_dataset(), tmp_path / "data")
    places = ("--data", tmp_path / "data", "--out", tmp_path / "my run")
    recipe = write_recipe(tmp_path, model=model)
    return [*map(str, ("train", recipe, *places)), "--set", *ENDLESS]


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


def test_a_signal_saves_the_state_and_the_printed_command_goes_on(
    endless: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "my run"
    keymatch = [sys.executable, "-m", "training"]
    status, [*_, said] = ended([*keymatch, *endless], run, signal.SIGINT)
    assert status == 130
    first = saved_step(run)
    assert f"SIGINT: {run}/last has the state of step {first}. Go on with: " in said
    assert (run / "best/modules.json").is_file()

    program, *arguments = shlex.split(said.partition("Go on with: ")[2])
    assert (program, arguments[:2]) == ("keymatch", ["lab", "train"])
    status, [*_, said] = ended([*keymatch, *arguments[1:]], run, signal.SIGTERM)
    assert status == 143
    assert saved_step(run) > first
    assert said.startswith("SIGTERM: ") and said.endswith(" --resume")


@pytest.mark.parametrize("to_all", [False, True], ids=["to the parent", "from a terminal"])
def test_two_processes_save_one_state_and_say_so_once(
    to_all: bool, endless: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "my run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", "-m", "training"]
    status, lines = ended([*launcher, *endless], run, signal.SIGINT, to_all=to_all)
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
