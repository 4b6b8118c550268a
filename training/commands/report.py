"""`python -m training report`: scored runs and peers side by side on one page."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from service.core.errors import MissingExtra
from service.core.files.atomic import new_folder, refuse_existing
from training.experiments.stream_panels import read_streams, stream_panels
from training.report.runs import read_runs

PAGE = "report.html"
MANY_PATHS = Parameter(consume_multiple=True, negative=(), show_default=False)


def report(
    *,
    runs: Annotated[tuple[Path, ...], MANY_PATHS] = (),
    streams: Annotated[tuple[Path, ...], MANY_PATHS] = (),
    out: Path,
) -> None:
    """Compare scored runs: tables, sweeps, paired t-tests, and the paper's orderings checked.

    Writes OUT/report.html, which loads nothing from elsewhere, and its pictures as PNG beside it.

    Parameters
    ----------
    runs
        Folders that `score` wrote results into, of one or several data sets.
    streams
        Files that `simulate stream --json` wrote; their pictures close the page.
    out
        The report's folder; it must not exist yet.
    """
    refuse_existing(out)
    by_dataset = {} if streams and not runs else read_runs(runs)
    replayed = read_streams(streams)
    try:
        from training.report.page import pictures, render, sections_of
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    console = Console()
    with console.status("drawing"):
        sections = sections_of(by_dataset)
        drawn = pictures("stream", list(stream_panels(replayed)))
        page = render(sections, drawn)
    with new_folder(out) as folder:
        (folder / PAGE).write_text(page, encoding="utf-8")
        for picture in chain(*(section.pictures for section in sections), drawn):
            (folder / f"{picture.name}.png").write_bytes(picture.light)
            (folder / f"{picture.name}-dark.png").write_bytes(picture.dark)
    count = sum(map(len, by_dataset.values()))
    names = dict.fromkeys([*by_dataset, *(stream.dataset for stream in replayed)])
    console.print(
        f"{out / PAGE}: {count} run(s), {len(replayed)} stream(s) on {', '.join(names)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
