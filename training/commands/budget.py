"""`python -m training budget`: the loss of quality by a smaller memory, for each method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
from rich.table import Table

from service.command_line import open_console
from service.core.errors import MissingExtra
from service.core.files.atomic import refuse_unwritable, write_file
from training.commands.options import MANY, ScoringPrecision
from training.commands.scoring.figures import SHOWN
from training.datasets import lf_xmc
from training.datasets.dataset import require_test_rows
from training.reduction import METHODS, budget_rows, check_method

if TYPE_CHECKING:
    from training.experiments.cost_curve import Cost
    from training.experiments.study import Study


def budget(
    *,
    data: Path,
    run: Path | None = None,
    encoder: str | None = None,
    budgets: Annotated[tuple[float, ...], MANY] = (0.1, 0.25, 0.5, 0.75, 1.0),
    methods: Annotated[tuple[str, ...], MANY] = tuple(METHODS),
    held_out: int | None = None,
    precision: ScoringPrecision = "fp32",
    json: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Measure memories with fewer instance keys; all labels stay.

    The best method is chosen on rows that were held out of training; the metrics of the test rows
    are reported beside them.

    Parameters
    ----------
    data
        The data set's folder.
    run
        A run's folder.
    encoder
        In place of a run: an encoder as `export bundle` takes it, which never saw the data.
    budgets
        Shares of the instances, above 0 and up to 1.
    methods
        Methods of reduction; default: all of random, coverage, redundant, representative, merge.
    held_out
        How many training rows to hold out for an encoder; default 1,000.
    json
        Also write the figures, in percent, to this file.
    plot
        Also draw P@1, P@5, R@100 and PSP@5 of the test rows against the budget, a PNG each, to
        PLOT with the metric in its name.
    """
    _check(budgets, methods, json)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    try:
        from training.experiments.cost_curve import measure, preferred, write_plots
        from training.experiments.study import open_study
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    console = open_console()
    with console.status("encoding"):
        study = open_study(dataset, run=run, encoder=encoder, rows=held_out, precision=precision)
    with console.status("measuring"):
        costs = list(measure(study, methods=methods, shares=budgets))
    best = preferred(costs)
    console.print(_table(costs, dataset.name))
    if best is not None:
        console.print(f"best on held-out rows below the whole memory: {best}")
    if plot is not None:
        write_plots(costs, plot, title=dataset.name)
    if json is not None:
        _write_json(json, study, costs, best)


def _check(budgets: Sequence[float], methods: Sequence[str], json: Path | None) -> None:
    """Raise `InvalidInput` for what would fail after long work."""
    for share in budgets:
        budget_rows(share, total=1)
    for method in methods:
        check_method(method)
    if json is not None:
        refuse_unwritable(json.parent)


def _write_json(path: Path, study: Study, costs: Sequence[Cost], best: str | None) -> None:
    propensity = study.dataset.propensity
    document = {
        "dataset": study.dataset.name,
        "encoder": study.name,
        "choices": vars(study.choices),
        "propensity": {"a": propensity.a, "b": propensity.b},
        "preferred": best,
        "costs": [vars(cost) for cost in costs],
    }
    write_file(path, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def _table(costs: Sequence[Cost], name: str) -> Table:
    title = f"{name}, percent of test rows; held-out rows: the mean of all four"
    table = Table(title=title)
    table.add_column("method")
    for column in ("share", "keys", "held-out", *SHOWN):
        table.add_column(column, justify="right")
    for cost in costs:
        table.add_row(
            cost.method,
            f"{cost.share:g}",
            f"{cost.rows:,}",
            f"{cost.criterion:.2f}",
            *(f"{cost.test[metric]:.2f}" for metric in SHOWN),
        )
    return table
