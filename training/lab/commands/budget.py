"""`keymatch lab budget`: how much quality a smaller memory loses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table as ConsoleTable

from service.command_line import open_console
from service.core.files.atomic import refuse_unwritable
from training.commands.options import MANY, SHOWN, ScoringPrecision
from training.datasets import lf_xmc
from training.datasets.dataset import require_test_rows
from training.documents import write_json
from training.lab.report.tables import Table, percent
from training.reduction import budget_rows

if TYPE_CHECKING:
    from training.lab.study import Cost

SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


def budget(
    *,
    data: Path,
    run: Path | None = None,
    encoder: str | None = None,
    budgets: Annotated[tuple[float, ...], MANY, Parameter(name="--budget")] = SHARES,
    precision: ScoringPrecision = "fp32",
    json: Path | None = None,
) -> None:
    """Measure memories with fewer instance keys; all labels stay.

    Keeps representative rows, as `export bundle --instances` does. Shows the metrics of rows that
    were held out of training (of an encoder's, 1,000 or a fifth), and of the test rows.

    Parameters
    ----------
    data
        The data set's folder.
    run
        A run's folder.
    encoder
        Instead of a run: an encoder as `export bundle` takes it, which has not trained on the data.
    budgets
        Shares of the instances, above 0 and up to 1.
    json
        Also write the figures, in percent, to this file.
    """
    for share in budgets:
        budget_rows(share, total=1)  # refuses a wrong one before the long work
    if json is not None:
        refuse_unwritable(json.parent)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    from training.lab.study import open_study

    console = open_console()
    with console.status("encoding"):
        study = open_study(dataset, run=run, encoder=encoder, precision=precision)
    with console.status("measuring"):
        costs = list(study.costs(budgets))
    console.print(_table(costs, dataset.name))
    if json is not None:
        document = {
            "dataset": dataset.name,
            "encoder": str(run or encoder),
            "choices": vars(study.scoring.choices),
            "propensity": vars(dataset.propensity),
            "costs": [vars(cost) for cost in costs],
        }
        write_json(json, document)


def _table(costs: Sequence[Cost], name: str) -> ConsoleTable:
    rows = [
        [
            f"{cost.share:g}",
            f"{cost.rows:,}",
            percent(cost.criterion),
            *(percent(cost.test[metric]) for metric in SHOWN),
        ]
        for cost in costs
    ]
    table = Table(headings=("share", "keys", "held-out", *SHOWN), rows=rows, texts=0)
    return table.console(f"{name}, percent of test rows; held-out rows: the mean of all four")
