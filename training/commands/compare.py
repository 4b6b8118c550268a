"""`python -m training compare`: train and score every system of a comparison."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from service.core.errors import CommandFailed
from training.checkpoints.run_json import RUN
from training.commands.options import MANY, AskedPrecision
from training.comparisons import comparison as comparisons
from training.comparisons.comparison import Comparison, Entry
from training.datasets import lf_xmc
from training.datasets.train_test_overlap import refuse_overlap
from training.evaluation import results
from training.models.precision import Precision


def compare(
    comparison: str,
    /,
    *,
    data: Path,
    out: Path,
    only: Annotated[tuple[str, ...], MANY] = (),
    precision: AskedPrecision = "fp32",
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train and score systems on the same data; prints each command, which can be run alone.

    Entries with results are skipped, and an interrupted run continues, so repeat the command after
    an error. `report --runs OUT/*` compares the results.

    Parameters
    ----------
    comparison
        A comparison's name (that of its data set) or a .toml file, see
        `training.comparisons.comparison`.
    data
        The data set's folder.
    out
        Folder for the runs; each has a subfolder.
    only
        Names of entries; without it, all.
    dry_run
        Only print the commands.
    """
    loaded = comparisons.load(comparison)
    entries = loaded.chosen(only)
    refuse_overlap(lf_xmc.read(data), data)
    console = Console(markup=False, highlight=False, soft_wrap=True)
    for entry in entries:
        for command in commands(entry, loaded, data=data, out=out, precision=precision):
            console.print(f"python -m training {shlex.join(command)}")
            if not dry_run:
                _run(command)


def commands(
    entry: Entry, comparison: Comparison, *, data: Path, out: Path, precision: Precision
) -> Iterator[Sequence[str]]:
    """The commands that an entry still needs, in order."""
    folder, on = out / entry.name, ("--data", str(data))
    if (folder / results.FILE).exists():
        return
    own = _settings(entry.set)
    asked = ("--name", entry.name, "--precision", precision)
    if entry.peer is not None:
        yield ("peer", entry.peer, *on, "--out", str(folder), *own)
    elif entry.encoder is not None:
        yield ("score", "--encoder", entry.encoder, *on, "--out", str(folder), *asked)
    elif entry.recipe is not None:
        shared = _settings(comparison.set)
        if not (folder / RUN).exists():
            yield ("train", entry.recipe, *on, "--out", str(folder), "--resume", *shared, *own)
        yield ("score", "--run", str(folder), *on, *asked)


def _settings(assignments: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for one in assignments for part in ("--set", one))


def _run(command: Sequence[str]) -> None:
    """Run a command in a separate process, so that no memory or random state is carried over.

    Raises `CommandFailed`; the command has printed the reason.
    """
    status = subprocess.run([sys.executable, "-m", "training", *command], check=False).returncode
    if status:
        raise CommandFailed(f"{' '.join(command[:2])} ended with status {status}")
