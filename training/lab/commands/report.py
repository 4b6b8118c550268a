"""`keymatch lab report`: one page that compares scored runs and peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from service.command_line import open_console
from service.core.files.atomic import new_folder, refuse_unusable
from training.lab import replay
from training.lab.report.runs import read_runs

MANY_PATHS = Parameter(consume_multiple=True, negative=(), show_default=False)
PAGE, TABLES = "report.html", "tables.md"


def report(
    *,
    run: Annotated[tuple[Path, ...], MANY_PATHS] = (),
    stream: Annotated[tuple[Path, ...], MANY_PATHS] = (),
    out: Path,
) -> None:
    """Compare scored runs: tables, sweeps, paired t-tests, and checks of the paper's orderings.

    Writes OUT/report.html, which loads no other file. OUT/tables.md has the main tables of each
    data set, in the form of training/lab/measured/README.md.

    Parameters
    ----------
    run
        Folders with the results of `score` or `peer`, of one or several data sets.
    stream
        Files that `simulate stream --json` wrote. Their tables are at the end of the page.
    out
        Folder for the report; it must not exist yet.
    """
    refuse_unusable(out)
    by_dataset = {} if stream and not run else read_runs(run)
    replayed = [replay.read(path) for path in stream]
    from training.lab.report.page import markdown, render, section_of, stream_section

    console = open_console()
    with console.status("drawing"):
        sections = [section_of(runs) for runs in by_dataset.values()]
        sections += [stream_section(replayed)] if replayed else []
        page = render(sections)
        tables = [line for one in by_dataset.items() for line in markdown(*one)]
    with new_folder(out) as temporary:
        (temporary / PAGE).write_text(page, encoding="utf-8")
        if tables:
            (temporary / TABLES).write_text("\n".join(tables), encoding="utf-8")
    datasets = [*by_dataset, *(one.dataset for one in replayed)]
    counts = [f"{sum(map(len, by_dataset.values()))} run(s)", f"{len(replayed)} stream(s)"]
    console.print(
        f"{out / PAGE}: {', '.join(counts)} on {', '.join(dict.fromkeys(datasets))}",
        soft_wrap=True,
    )
