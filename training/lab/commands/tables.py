"""`keymatch lab tables`: writes the committed results as one Markdown page."""

from __future__ import annotations

from pathlib import Path

from service.command_line import open_console
from service.core.files.atomic import refuse_unwritable, write_file


def tables(*, input: Path, out: Path) -> None:
    """Write all results below a folder as tables: training/lab/measured/README.md is made this way.

    Parameters
    ----------
    input
        A folder with SET/RUN/results.json, SET/robustness.json of `robustness`,
        unidec/DATASET/RUN/results.json of UniDEC's ablations, and novel/DATASET.json of `lab
        score-novel --json`. A set is a data set or a comparison.
    out
        The Markdown file; an existing one is replaced.
    """
    from training.lab.report.quality.page import quality_page  # scipy.stats takes long to import

    refuse_unwritable(out.absolute().parent)
    page = quality_page(input)
    write_file(out, page.encode())
    console = open_console()
    console.print(f"{out}: {page.count(chr(10))} lines", soft_wrap=True)
