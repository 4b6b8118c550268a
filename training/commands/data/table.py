"""`python -m training data table`: one split of a data set as a table for `python -m service`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from service.command_line import open_console
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_existing, refuse_unwritable
from training.datasets import lf_xmc
from training.datasets.tables.split_table import COLUMNS, form_of, write_table


def table(*, data: Path, split: Literal["test", "train"] = "test", out: Path) -> None:
    """Write one split as a table, for `service compare --queries` and `service predict --input`.

    Its columns are query, label_id, label and weight. A .csv file has a row a pair, a .jsonl file a
    row a query, with lists. Filtered pairs, which no metric counts, are left out.

    Parameters
    ----------
    data
        The data set's folder.
    split
        The test rows, or the training rows.
    out
        The new file: .csv or .jsonl.
    """
    form_of(out)  # refuses an unknown ending before the data set is read
    refuse_existing(out)
    refuse_unwritable(out)
    dataset = lf_xmc.read(data)
    rows = dataset.test if split == "test" else dataset.train
    if not len(rows):
        message = f"data set {dataset.name} has no {split} rows to write"
        raise InvalidInput(f"{message}; `data pairs --test-fraction` above 0 makes test rows")
    with open_console(stderr=True).status("writing", spinner="dots"):
        write_table(rows, dataset.labels, out)
    pairs = rows.labels_of.nnz - rows.labels_of.multiply(rows.filtered).nnz
    open_console().print(
        f"{out}: {len(rows):,} queries, {pairs:,} pairs; columns {', '.join(COLUMNS)}",
        soft_wrap=True,
    )
