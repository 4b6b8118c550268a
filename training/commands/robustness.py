"""`python -m training robustness`: what missing and wrong metadata cost oracles and OAK."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.table import Table

from service.command_line import open_console
from service.core.errors import InvalidInput, MissingExtra
from service.core.files.atomic import refuse_unwritable, write_file
from training.checkpoints.run_json import read_run_on
from training.commands.options import MANY, ScoringPrecision
from training.commands.scoring.figures import SHOWN
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, require_test_rows
from training.datasets.metadata_links import require_metadata
from training.evaluation import robustness as results
from training.evaluation.robustness import Robustness
from training.evaluation.seeds import check_seeds
from training.progress import say, stages
from training.report.robustness_panels import robustness_panels

PLOT = "robustness.png"
SEEDS = (13, 14, 15)


def robustness(
    *,
    runs: Annotated[tuple[Path, ...], MANY],
    data: Path,
    out: Path,
    seeds: Annotated[tuple[int, ...], MANY] = SEEDS,
    precision: ScoringPrecision = "fp32",
) -> None:
    """Measure runs with true, predicted, missing and wrong metadata of the test queries.

    The counterpart of MOGIC's Tables 6, 8 and 9. A run that reads no metadata, such as an oracle's
    disciple, is measured once. Writes robustness.json, which `tables` and `report` read, and
    robustness.png.

    Parameters
    ----------
    runs
        Folders of finished runs on these data; at least one of them an oracle, or a run of OAK.
    data
        The data set's folder, with metadata.
    out
        The folder for the figures.
    seeds
        Each draws at random once what is dropped, replaced or left of the items: the figures are
        the means and standard deviations over these draws.
    """
    refuse_unwritable(out)
    check_seeds(seeds)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    require_metadata(dataset, reader="robustness changes")
    _check_runs(runs, dataset)
    try:
        from training.experiments.metadata_conditions import measure_run
        from training.report.plots import LIGHT, draw
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    console, measured = open_console(), []
    for run in runs:
        say(f"measuring {run}")
        with stages(console) as report:
            one = measure_run(run, dataset, seeds=seeds, precision=precision, report=report)
        measured.append(one)
    found = Robustness(dataset=dataset.name, seeds=seeds, precision=precision, runs=tuple(measured))
    console.print(_table(found))
    results.write(found, out)
    [panel] = robustness_panels([found])
    write_file(out / PLOT, draw(panel, LIGHT))


def _check_runs(runs: Sequence[Path], dataset: Dataset) -> None:
    """Raise before anything is measured: for unfinished runs, other data, and equal names."""
    seen: dict[str, Path] = {}
    for run in runs:
        read_run_on(run, dataset.name)
        other = seen.setdefault(run.name, run)
        if other is not run:
            raise InvalidInput(f"{other} and {run} are both named {run.name}: rename one folder")


def _table(found: Robustness) -> Table:
    table = Table(title=f"{found.dataset}, percent of test rows, {len(found.seeds)} draw(s)")
    table.add_column("run")
    table.add_column("metadata of the queries")
    for metric in SHOWN:
        table.add_column(metric, justify="right")
    for run in found.runs:
        for one in run.measured:
            cells = (one.shown(metric) for metric in SHOWN)
            table.add_row(run.run, str(one.condition), *cells)
    return table
