"""Texts that occur in both train and test, which would make every figure too good."""

from __future__ import annotations

from pathlib import Path

from service.core.errors import InvalidData
from service.core.files.lines import find
from training.datasets.dataset import Dataset

TRAIN_FILES = ("trn.json", "train_raw_texts.txt", "trn_X_Y.txt")


def refuse_overlap(dataset: Dataset, folder: Path) -> None:
    """Raise `InvalidData` that names the first training row whose text is also a test text.

    Both layouts have one row on each line; the error names the line of the training file.
    """
    test = {text: row for row, text in reversed(list(enumerate(dataset.test.instances.texts)))}
    for row, text in enumerate(dataset.train.instances.texts):
        if text in test:
            path = next(filter(None, (find(folder, name) for name in TRAIN_FILES)), folder)
            raise InvalidData(
                path,
                f"the text {text[:80]!r} is also test row {test[text] + 1}; figures would be too"
                " good (--allow-test-rows trains nevertheless)",
                line=row + 1,
                field="title",
            )
