"""`python -m training tables`: the committed results as one Markdown page."""

from __future__ import annotations

from pathlib import Path

from service.command_line import open_console
from service.core.files.atomic import refuse_unwritable


def tables(*, measured: Path, out: Path) -> None:
    """Write the tables of all results below a folder; training/measured/README.md is made so.

    Parameters
    ----------
    measured
        A folder with SET/RUN/results.json, SET/robustness.json of `robustness`,
        unidec/DATASET/RUN/results.json of UniDEC's ablations, and novel/DATASET.json of
        `evaluate-novel --json`; a set is a data set or a comparison.
    out
        The Markdown file; it is replaced.
    """
    from training.report.quality.page import quality_page  # scipy.stats takes long to import

    refuse_unwritable(out.absolute().parent)
    page = quality_page(measured)
    out.write_text(page, encoding="utf-8")
    console = open_console()
    console.print(f"{out}: {page.count(chr(10))} lines", soft_wrap=True)
