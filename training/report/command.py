"""`python -m training report`: scored runs and peers side by side on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from service.core.durable import new_folder, refuse_existing
from service.core.errors import MissingExtra
from training.report.runs import read_runs

PAGE = "report.html"


def report(
    *,
    runs: Annotated[
        tuple[Path, ...], Parameter(consume_multiple=True, negative=(), show_default=False)
    ] = (),
    out: Path,
) -> None:
    """Compare scored runs: tables, sweeps, paired t-tests, and the paper's orderings checked.

    Writes OUT/report.html, which loads nothing from elsewhere, and its pictures as PNG beside it.

    Parameters
    ----------
    runs
        Folders that `score` wrote results into, of one or several data sets.
    out
        The report's folder; it must not exist yet.
    """
    refuse_existing(out)
    by_dataset = read_runs(runs)
    try:
        from training.report.page import render, sections_of
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    console = Console()
    with console.status("drawing"):
        sections = sections_of(by_dataset)
        page = render(sections)
    with new_folder(out) as folder:
        (folder / PAGE).write_text(page, encoding="utf-8")
        for section in sections:
            for picture in section.pictures:
                (folder / f"{picture.name}.png").write_bytes(picture.light)
                (folder / f"{picture.name}-dark.png").write_bytes(picture.dark)
    count = sum(map(len, by_dataset.values()))
    console.print(
        f"{out / PAGE}: {count} run(s) on {', '.join(by_dataset)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
