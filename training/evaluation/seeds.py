"""Folders of results with several seeds: RUN holds those of seed 0, RUN/seed-1 those of seed 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from service.core.errors import InvalidInput
from training.evaluation import results

FIRST_SEED = 0  # of every recipe that names no seed
PREFIX = "seed-"


def folder_of_seed(run: Path, seed: int) -> Path:
    """The folder of a run's results with a seed."""
    return run if seed == FIRST_SEED else run / f"{PREFIX}{seed}"


def folders_by_seed(run: Path) -> dict[int, Path]:
    """The folders with results, by ascending seed."""
    found = {FIRST_SEED: run} if (run / results.FILE).is_file() else {}
    for folder in run.glob(f"{PREFIX}*"):
        number = folder.name.removeprefix(PREFIX)
        if number.isdecimal() and (folder / results.FILE).is_file():
            found[int(number)] = folder
    return dict(sorted(found.items()))


def check_seed(seed: int) -> None:
    """Raise `InvalidInput` for a negative seed."""
    if seed < 0:
        raise InvalidInput(f"the seed must be 0 or more, not {seed}", field="seed")


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise `InvalidInput` if there is no seed, a negative seed, or a repeated one."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        shown = " ".join(map(str, seeds)) or "none"
        raise InvalidInput(f"--seed takes different numbers from 0 on, not {shown}")
