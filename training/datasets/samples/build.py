"""Rows of a text and its labels as a data set, and the files that they are read from."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from service.core.errors import InvalidData, InvalidInput, MissingExtra
from training.datasets.dataset import Dataset, Split, Texts, pairs_matrix
from training.datasets.sparse_rows import SparseRows
from training.datasets.train_test_split import is_test

TEST_FRACTION = 0.2
Rows = Iterable[tuple[str, Iterable[str]]]  # a text and its labels


def build(rows: Rows, *, name: str, source: str) -> Dataset:
    """Return the data set; its rows and labels are sorted by their texts.

    Whitespace is collapsed. Equal texts become one row with the labels of all of them. A label that
    equals the text is no positive, and is filtered; rows without labels are left out. A hash of the
    text draws the test split, as in `data pairs`. Raises `InvalidInput` where a split is empty.
    """
    labels_of = _merged(rows)
    texts = sorted(labels_of)
    labels = sorted({label for found in labels_of.values() for label in found})
    column = {label: number for number, label in enumerate(labels)}
    test = {text for text in texts if is_test(text, fraction=TEST_FRACTION, seed=0)}
    if not test or len(test) == len(texts):
        raise InvalidInput(f"{name}: {len(texts)} rows are too few for a train and a test split")
    return Dataset(
        name=name,
        train=_split([text for text in texts if text not in test], labels_of, column),
        test=_split([text for text in texts if text in test], labels_of, column),
        labels=Texts(uids=tuple(labels), texts=tuple(labels)),
        fields=("title",),
        source=source,
    )


def read_json(package: str, inside: str, folder: Path | None) -> Any:
    """Read the JSON file `inside` a package: the installed one, or a `folder` with its files."""
    if folder is None:
        try:
            folder = Path(str(resources.files(package)))
        except ModuleNotFoundError as error:
            raise MissingExtra(package, extra="samples") from error
    path = folder / inside
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidData(path, f"is not JSON: {error}") from error


def _merged(rows: Rows) -> dict[str, set[str]]:
    """The labels of each text, without the text itself; texts without labels are left out."""
    labels_of: dict[str, set[str]] = {}
    for text, labels in rows:
        text = _collapsed(text)
        found = {_collapsed(label) for label in labels} - {text, ""}
        if text and found:
            labels_of.setdefault(text, set()).update(found)
    return labels_of


def _collapsed(text: str) -> str:
    return " ".join(text.split())


def _split(texts: list[str], labels_of: dict[str, set[str]], column: dict[str, int]) -> Split:
    rows = SparseRows()
    for text in texts:
        rows.append(sorted(column[label] for label in labels_of[text]))
    same_text = ((row, column[text]) for row, text in enumerate(texts) if text in column)
    return Split(
        instances=Texts(uids=tuple(texts), texts=tuple(texts)),
        labels_of=rows.matrix(len(column)),
        filtered=pairs_matrix(same_text, shape=(len(texts), len(column))),
    )
