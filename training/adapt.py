"""`python -m training adapt`: learn a lambda of each query's own, and see whether it wins."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from service.core.errors import MissingExtra
from service.core.files.atomic import write_file
from training.checkpoints.run_json import BEST
from training.commands.options import AskedPrecision
from training.datasets import lf_xmc

if TYPE_CHECKING:
    from training.adaption import Adaption

SHOWN = ("P@1", "P@5", "R@100", "PSP@5")


def adapt(
    *,
    data: Path,
    run: Path | None = None,
    encoder: str | None = None,
    held_out: int | None = None,
    precision: AskedPrecision = "fp32",
    json: Annotated[Path | None, Parameter(help="Also write the figures to this file.")] = None,
) -> None:
    """Learn lambda from what each query retrieves, on rows that were held out of training.

    A run's folder gets best/adaptive.json, which `export bundle` puts into the bundle, switched off
    unless it is told --adaptive-memorization. Figures of the test rows are reported beside those
    that it was chosen by.

    Parameters
    ----------
    data
        The data set's folder.
    run
        A run's folder.
    encoder
        In place of a run: an encoder as `export bundle` takes it, which never saw the data.
    held_out
        How many training rows to hold out for an encoder; default 1,000.
    """
    dataset = lf_xmc.read(data)
    try:
        from training.adaption import learn
        from training.checkpoints.choices import write_learned
        from training.experiments.study import open_study
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    console = Console()
    with console.status("encoding"):
        study = open_study(dataset, run=run, encoder=encoder, rows=held_out, precision=precision)
    with console.status("ranking at every lambda"):
        found = learn(study)
    if run is not None:
        write_learned(run / BEST, found.learned)
    console.print(_table(found, dataset.name))
    console.print(found.verdict, highlight=False, soft_wrap=True)
    if json is not None:
        document = {
            "dataset": dataset.name,
            "encoder": study.name,
            "wins": found.wins,
            **asdict(found),
        }
        write_file(json, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def _table(found: Adaption, name: str) -> Table:
    table = Table(title=f"{name}, percent of test rows")
    table.add_column("lambda")
    for metric in SHOWN:
        table.add_column(metric, justify="right")
    for what, metrics in (
        (f"{found.constant:.3g} for all", found.test_constant),
        ("each query's own", found.test_adaptive),
    ):
        table.add_row(what, *(f"{metrics[metric]:.2f}" for metric in SHOWN))
    p_values = (found.p_values.get(metric) for metric in SHOWN)
    table.add_row("p of a paired t-test", *("" if p is None else f"{p:.2g}" for p in p_values))
    return table
