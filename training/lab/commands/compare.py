"""`keymatch lab compare`: train and score every system of a comparison."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.command_line import open_console
from service.core.errors import CommandFailed
from service.core.files.atomic import refuse_unwritable
from service.core.processes.own_code import own_module
from training.checkpoints.run_json import BEST, RUN
from training.commands.options import MANY, ScoringPrecision
from training.commands.train import can_resume
from training.datasets import lf_xmc
from training.datasets.dataset import require_test_rows
from training.datasets.train_test_split import refuse_overlap
from training.evaluation import results
from training.evaluation.seeds import FIRST_SEED, check_seeds, folder_of_seed
from training.lab.comparisons import comparison as comparisons
from training.lab.comparisons.comparison import Comparison, Entry
from training.models.encoder_location import VECTOR_CACHE
from training.models.precision import Precision

FOR_USERS = ("fit", "score")  # called as `keymatch NAME`, without `lab`
VECTORS = ".vectors"  # the subfolder of the runs' folder that caches vectors of frozen encoders


def compare(
    comparison: str,
    /,
    *,
    data: Path,
    out: Path,
    only: Annotated[tuple[str, ...], MANY] = (),
    seed: Annotated[tuple[int, ...], MANY] = (FIRST_SEED,),
    precision: ScoringPrecision = "fp32",
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train and score systems on the same data; prints each command, which can be run alone.

    Entries with results are skipped, and an interrupted run continues, so repeat the command after
    an error. `keymatch lab report --run OUT/*` compares the results.

    Parameters
    ----------
    comparison
        A comparison's name (the name of its data set) or a .toml file; the format is described in
        `training.lab.comparisons.comparison`.
    data
        The data set's folder.
    out
        Folder for the runs; each has a subfolder.
    only
        Names of the entries to run. Default: all.
    seed
        Seeds of training. Results of seed 0 lie in OUT/ENTRY, those of seed 1 in OUT/ENTRY/seed-1
        and so on, guided by oracles of the same seed. Report and tables give mean and deviation.
        Entries without a recipe run once.
    dry_run
        Only print the commands.
    """
    check_seeds(seed)
    loaded = comparisons.load(comparison)
    entries = loaded.chosen(only)
    refuse_unwritable(out)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    refuse_overlap(dataset, data)
    console = open_console()
    for entry, one in product(entries, seed):
        for command in commands(entry, loaded, data=data, out=out, precision=precision, seed=one):
            words = command if command[0] in FOR_USERS else ("lab", *command)
            console.print(f"keymatch {shlex.join(words)}", soft_wrap=True)
            if not dry_run:
                _run(command, vectors=out / VECTORS)


def commands(
    entry: Entry,
    comparison: Comparison,
    *,
    data: Path,
    out: Path,
    precision: Precision,
    seed: int = FIRST_SEED,
) -> Iterator[Sequence[str]]:
    """The commands that are still to be run for an entry with a seed, in order."""
    if seed != FIRST_SEED and not entry.is_seeded:
        return

    def folder_of(name: str) -> Path:
        with_seeds = comparison.named(name).is_seeded
        return folder_of_seed(out / name, seed if with_seeds else FIRST_SEED)

    folder, on_data = folder_of(entry.name), ("--data", str(data))
    if (folder / results.FILE).exists():
        return
    places = (*on_data, "--out", str(folder))
    scoring = ("--name", entry.name, "--precision", precision)
    if entry.peer is not None:
        yield ("peer", entry.peer, *places, *_settings(entry.set))
    elif entry.reranks is not None:
        yield ("rerank", "--run", str(folder_of(entry.reranks)), *places, *scoring)
    elif entry.scores is not None:
        share = ("--head-share", f"{entry.head_share:g}")
        yield ("score", "--run", str(folder_of(entry.scores)), *places, *share, *scoring)
    elif entry.encoder is not None:
        yield ("score", "--encoder", entry.encoder, *places, *scoring)
    else:
        if not (folder / RUN).exists():
            resume = ("--resume",) if entry.recipe and can_resume(folder) else ()
            yield _training(entry, comparison, (*places, *resume), seed=seed, folder_of=folder_of)
        yield ("score", "--run", str(folder), *on_data, *scoring)


def _training(
    entry: Entry,
    comparison: Comparison,
    options: Sequence[str],
    *,
    seed: int,
    folder_of: Callable[[str], Path],
) -> Sequence[str]:
    """The command that trains the entry's run.

    `options` lack other entries and settings; `folder_of` returns the folder of an entry's run.
    """
    if entry.recipe is None:
        return ("fit", *options, "--minutes", f"{entry.fit:g}")
    more: tuple[str, ...] = () if seed == FIRST_SEED else (f"seed={seed}",)
    if entry.guided_by is not None:
        more += (f"guidance.oracle={folder_of(entry.guided_by)}",)
    if entry.encoder_of is not None:
        options = (*options, "--encoder", str(folder_of(entry.encoder_of) / BEST))
    return ("train", entry.recipe, *options, *_settings((*comparison.set, *entry.set, *more)))


def _settings(assignments: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for assignment in assignments for part in ("--set", assignment))


def _run(command: Sequence[str], *, vectors: Path) -> None:
    """Run a command in a separate process, so that no memory or random state is carried over.

    Raises `CommandFailed`; the command has printed the reason.
    """
    environment = {VECTOR_CACHE: str(vectors.absolute()), **os.environ}
    status = subprocess.run(
        own_module("training", *command), env=environment, check=False
    ).returncode
    if status:
        raise CommandFailed(f"{' '.join(command[:2])} ended with status {status}")
