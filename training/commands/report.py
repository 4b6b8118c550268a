"""`python -m training report`: one page that compares scored runs and peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.command_line import open_console
from service.core.errors import MissingExtra
from service.core.files.atomic import refuse_existing, refuse_unwritable
from training.evaluation.robustness import read as read_robustness
from training.experiments.stream_panels import read_streams, stream_panels
from training.report.robustness_panels import robustness_panels
from training.report.runs import read_runs

MANY_PATHS = Parameter(consume_multiple=True, negative=(), show_default=False)


def report(
    *,
    runs: Annotated[tuple[Path, ...], MANY_PATHS] = (),
    streams: Annotated[tuple[Path, ...], MANY_PATHS] = (),
    robustness: Annotated[tuple[Path, ...], MANY_PATHS] = (),
    out: Path,
) -> None:
    """Compare scored runs: tables, sweeps, paired t-tests, and the paper's orderings checked.

    Writes OUT/report.html, which loads no other file, and its pictures as separate PNG files.

    Parameters
    ----------
    runs
        Folders with the results of `score` or `peer`, of one or several data sets.
    streams
        Files that `simulate stream --json` wrote; their pictures are at the end of the page.
    robustness
        Files `robustness.json` that `robustness` wrote; their pictures stand there, too.
    out
        Folder for the report; it must not exist yet.
    """
    refuse_existing(out)
    refuse_unwritable(out)
    by_dataset = {} if (streams or robustness) and not runs else read_runs(runs)
    replayed = read_streams(streams)
    measured = [read_robustness(path) for path in robustness]
    try:
        from training.report.page import pictures, render, sections_of, write_page
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    console = open_console()
    with console.status("drawing"):
        sections = sections_of(by_dataset)
        of_streams = pictures("stream", list(stream_panels(replayed)))
        of_metadata = pictures("robustness", list(robustness_panels(measured)))
        page = render(sections, of_streams, of_metadata)
    file = write_page(page, sections, (*of_streams, *of_metadata), folder=out)
    datasets = [*by_dataset, *(stream.dataset for stream in replayed)]
    names = dict.fromkeys([*datasets, *(one.dataset for one in measured)])
    counts = [f"{sum(map(len, by_dataset.values()))} run(s)", f"{len(replayed)} stream(s)"]
    counts += [f"{len(measured)} robustness"] if measured else []
    console.print(f"{file}: {', '.join(counts)} on {', '.join(names)}", soft_wrap=True)
