"""`python -m training robustness`: what missing and wrong metadata cost an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
from rich.table import Table

from service.command_line import open_console
from service.core.errors import MissingExtra
from service.core.files.atomic import refuse_unwritable, write_file
from training.commands.options import MANY, ScoringPrecision
from training.datasets import lf_xmc
from training.datasets.dataset import require_test_rows
from training.datasets.metadata_links import require_metadata
from training.progress import say

if TYPE_CHECKING:
    from training.experiments.metadata_conditions import Condition

SHOWN = ("P@1", "P@5", "R@100", "PSP@5")
JSON, PLOT = "robustness.json", "robustness.png"

Row = tuple[str, "Condition", Mapping[str, float]]  # a run, what its queries know, its metrics


def robustness(
    *,
    runs: Annotated[tuple[Path, ...], MANY],
    data: Path,
    out: Path,
    precision: ScoringPrecision = "fp32",
) -> None:
    """Measure runs with true, predicted, missing and wrong metadata of the test queries.

    The counterpart of MOGIC's Tables 6, 8 and 9. A run that reads no metadata, such as an oracle's
    disciple, is measured once. Writes robustness.json and robustness.png.

    Parameters
    ----------
    runs
        Folders of finished runs on these data; at least one of them an oracle.
    data
        The data set's folder, with metadata.
    out
        The folder for the figures.
    """
    refuse_unwritable(out)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    require_metadata(dataset, reader="robustness changes")
    try:
        from training.experiments.metadata_conditions import measure_run
        from training.experiments.metadata_plot import draw_robustness
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    rows: list[Row] = []
    for run in runs:
        say(f"measuring {run}")
        for condition, metrics in measure_run(run, dataset, precision=precision):
            rows.append((run.name, condition, metrics))
    open_console().print(_table(rows, dataset.name))
    write_file(out / JSON, orjson.dumps(_document(rows), option=orjson.OPT_INDENT_2) + b"\n")
    write_file(out / PLOT, draw_robustness(rows, title=dataset.name))


def _table(rows: Sequence[Row], name: str) -> Table:
    table = Table(title=f"{name}, percent of test rows")
    table.add_column("run")
    table.add_column("metadata of the queries")
    for metric in SHOWN:
        table.add_column(metric, justify="right")
    for run, condition, metrics in rows:
        table.add_row(run, str(condition), *(f"{metrics[metric]:.2f}" for metric in SHOWN))
    return table


def _document(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [
        {
            "run": run,
            "metadata": condition.metadata,
            "share": condition.share,
            **{metric: metrics[metric] for metric in SHOWN},
        }
        for run, condition, metrics in rows
    ]
