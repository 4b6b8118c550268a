"""`keymatch lab split novel`: hides labels, to measure later how well they are retrieved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from service.command_line import open_console
from service.core.files.atomic import refuse_unusable
from training.datasets import lf_xmc
from training.datasets.dataset import require_test_rows
from training.lab import novel_split

app = App(name="split", help="Split data sets as in the papers' experiments.")


@app.command
def novel(
    *,
    data: Annotated[Path, Parameter(help="A data set in the LF-XMC layout.")],
    out: Annotated[Path, Parameter(help="The folder to write; it must not exist yet.")],
    fraction: Annotated[float, Parameter(help="The share of labels to hide.")] = 0.1,
    seed: Annotated[int, Parameter(help="Another seed hides other labels.")] = 0,
) -> None:
    """Hide a share of the labels and draw a query of each, for IRENE's zero- and one-shot settings.

    OUT/seen is a data set without the hidden labels, to train on and to build a bundle from.
    OUT/all has all labels, the hidden ones last. Its train rows are the queries that the one-shot
    settings reveal.
    """
    refuse_unusable(out)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    split = novel_split.split_novel(dataset, fraction=fraction, seed=seed)
    with open_console(stderr=True).status("writing", spinner="dots"):
        novel_split.write(split, out)
    test = split.everything.test.labels_of[:, split.facts.seen :]
    open_console().print(
        f"{out}: {split.facts.seen:,} seen labels and {split.facts.novel:,} novel labels,"
        f" {len(split.seen.train):,} train rows; {(test.getnnz(axis=1) > 0).sum():,} test rows have"
        f" a novel label",
        soft_wrap=True,
    )
