"""`keymatch lab robustness`: how much oracles and OAK lose by missing and wrong metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from rich.table import Table as ConsoleTable

from service.command_line import open_console
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unwritable, write_file
from training.checkpoints.run_json import read_run_on
from training.commands.figures import SHOWN
from training.commands.options import MANY, ScoringPrecision
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, require_test_rows
from training.datasets.metadata_links import require_metadata
from training.evaluation.seeds import check_seeds
from training.lab import robustness as results
from training.lab.report.tables import Table
from training.lab.robustness import Robustness
from training.progress import say, stages

PLOT = "robustness.png"
SEEDS = (13, 14, 15)


def robustness(
    *,
    run: Annotated[tuple[Path, ...], MANY],
    data: Path,
    out: Path,
    seed: Annotated[tuple[int, ...], MANY] = SEEDS,
    precision: ScoringPrecision = "fp32",
) -> None:
    """Measure runs with true, predicted, missing and wrong metadata of the test queries.

    The counterpart of MOGIC's Tables 6, 8 and 9. A run that reads no metadata, such as one that an
    oracle guided, is measured once. Writes robustness.json, which `report` reads, and
    robustness.png.

    Parameters
    ----------
    run
        Folders of finished runs on these data; at least one must be an oracle or a run of OAK.
    data
        The data set's folder, with metadata.
    out
        The folder for the figures.
    seed
        Each seed draws once which items are dropped, replaced or kept. The figures are means and
        standard deviations over these draws.
    """
    refuse_unwritable(out)
    check_seeds(seed)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    require_metadata(dataset, reader="robustness changes")
    _check_runs(run, dataset)
    from training.lab.metadata_conditions import measure_run
    from training.lab.report.plots import robustness_picture

    console, measured = open_console(), []
    for folder in run:
        say(f"measuring {folder}")
        with stages(console) as report:
            one = measure_run(folder, dataset, seeds=seed, precision=precision, report=report)
        measured.append(one)
    found = Robustness(dataset=dataset.name, seeds=seed, precision=precision, runs=tuple(measured))
    console.print(*_tables(found), sep="\n")
    results.write(found, out)
    write_file(out / PLOT, robustness_picture(found))


def _check_runs(runs: Sequence[Path], dataset: Dataset) -> None:
    """Raise an error for unfinished runs, other data and equal names, before measuring starts."""
    seen: dict[str, Path] = {}
    for run in runs:
        read_run_on(run, dataset.name)
        other = seen.setdefault(run.name, run)
        if other is not run:
            raise InvalidInput(f"{other} and {run} are both named {run.name}: rename one folder")


def _tables(found: Robustness) -> Iterator[ConsoleTable]:
    """Yield a table for each run."""
    for run in found.runs:
        rows = [[str(one.condition), *map(one.shown, SHOWN)] for one in run.measured]
        table = Table(headings=("metadata of the queries", *SHOWN), rows=rows, texts=1)
        yield table.console(
            f"{run.run} on {found.dataset}, percent of test rows, {len(found.seeds)} draw(s)"
        )
