"""The sparse text form of the LF-XMC layout, as in the public extreme-classification repository.

    trn_X_Y.txt, tst_X_Y.txt   a header `rows columns`, then a line `label:relevance ...` per row
    train_raw_texts.txt        a text per line; also test_raw_texts.txt and label_raw_texts.txt
    train_uids.txt             a uid per line; also test_uids.txt and label_uids.txt. Optional, an
                               addition of Keymatch: without it a uid is the row's number

Each file may be gzip (`.gz`). A row without labels is an empty line. This form has no metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData, InvalidInput
from service.core.files.lines import find, numbered_lines, write_lines
from training.datasets.dataset import Dataset, Split, Texts
from training.datasets.lf_xmc import filter_pairs
from training.datasets.lf_xmc.description import Description
from training.datasets.sparse_rows import SparseRows, is_relevance
from training.datasets.text_rows import TextRows

REQUIRED = (
    "trn_X_Y.txt",
    "tst_X_Y.txt",
    "train_raw_texts.txt",
    "test_raw_texts.txt",
    "label_raw_texts.txt",
)


def read(folder: Path, description: Description) -> Dataset:
    """Read a folder that holds `REQUIRED`; raises `InvalidData` with file and line."""
    labels = _read_texts(folder, "label")

    def split(side: str, matrix_name: str, filter_name: str) -> Split:
        instances = _read_texts(folder, side)
        shape = (len(instances), len(labels))
        return Split(
            instances=instances,
            labels_of=read_matrix(_file(folder, matrix_name), shape=shape),
            filtered=filter_pairs.read_filter(folder, filter_name, shape=shape),
        )

    return Dataset(
        name=description.name,
        train=split("train", "trn_X_Y.txt", filter_pairs.TRAIN),
        test=split("test", "tst_X_Y.txt", filter_pairs.TEST),
        labels=labels,
        propensity=description.propensity,
        fields=description.fields,
        source=description.source,
        learned=description.learned,
    )


def write(dataset: Dataset, folder: Path, *, compress: bool) -> None:
    """Write files that `read` reads back equal.

    Raises `InvalidInput` for metadata and for a text or uid with a line break, which this form
    cannot store.
    """
    if dataset.metadata is not None:
        raise InvalidInput("the sparse text layout cannot store metadata", field="metadata")
    end = ".gz" if compress else ""
    sides = (
        ("label", dataset.labels),
        ("train", dataset.train.instances),
        ("test", dataset.test.instances),
    )
    for side, texts in sides:
        write_lines(folder / f"{side}_raw_texts.txt{end}", _one_line_each(texts.texts, side))
        write_lines(folder / f"{side}_uids.txt{end}", _one_line_each(texts.uids, side))
    for name, split in (("trn_X_Y.txt", dataset.train), ("tst_X_Y.txt", dataset.test)):
        write_lines(folder / f"{name}{end}", matrix_lines(split.labels_of))


def read_matrix(path: Path, *, shape: tuple[int, int]) -> csr_matrix:
    """Return [rows, columns] float32; `InvalidData` if header or lines disagree with `shape`."""
    lines = numbered_lines(path)
    header = next(lines, (1, ""))[1].split()
    if len(header) != 2 or not all(word.isascii() and word.isdigit() for word in header):
        raise InvalidData(path, "expected a header `rows columns`", line=1)
    if header != [str(size) for size in shape]:
        message = f"is {' '.join(header)}, but there are {shape[0]} texts and {shape[1]} labels"
        raise InvalidData(path, message, line=1, field="header")
    rows = SparseRows()
    line = 1
    for line, text in lines:
        rows.append(*_entries(text, path=path, line=line, columns=shape[1]))
    if len(rows) != shape[0]:
        message = f"the file ends after {len(rows)} rows, but the header says {shape[0]}"
        raise InvalidData(path, message, line=line)
    return rows.matrix(shape[1])


def matrix_lines(matrix: csr_matrix) -> Iterator[bytes]:
    """Yield a header and rows that `read_matrix` reads back exactly."""
    yield b"%d %d" % matrix.shape
    values = matrix.data.astype(np.float32, copy=False)
    for start, stop in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        # str of a float32 is its shortest exact form.
        pairs = zip(matrix.indices[start:stop], values[start:stop], strict=True)
        yield " ".join(f"{column}:{value!s}" for column, value in pairs).encode()


def _entries(text: str, *, path: Path, line: int, columns: int) -> tuple[list[int], list[float]]:
    labels: list[int] = []
    relevances: list[float] = []
    for word in text.split():
        label, _, relevance = word.partition(":")
        # A longer label is out of any range, and int() might refuse it.
        if not (label.isascii() and label.isdigit() and len(label) <= 18 and _is_number(relevance)):
            raise InvalidData(path, f"expected `label:relevance`, not {word[:80]!r}", line=line)
        labels.append(int(label))
        relevances.append(float(relevance))
    _check_entries(labels, relevances, path=path, line=line, columns=columns)
    return labels, relevances


def _check_entries(
    labels: list[int], relevances: list[float], *, path: Path, line: int, columns: int
) -> None:
    for label, relevance in zip(labels, relevances, strict=True):
        if label >= columns:
            message = f"{label} is out of range: it must be below {columns}"
            raise InvalidData(path, message, line=line, field="label")
        if not is_relevance(relevance):
            message = f"{relevance!r} is not a positive finite number"
            raise InvalidData(path, message, line=line, field="relevance")
    if len(set(labels)) != len(labels):
        raise InvalidData(path, "a label is repeated", line=line, field="label")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read_texts(folder: Path, side: str) -> Texts:
    path = _file(folder, f"{side}_raw_texts.txt")
    uids = _read_uids(folder, side)
    rows = TextRows(path)
    for line, text in numbered_lines(path):
        uid = str(line - 1) if uids is None else next(uids, None)
        if uid is None:
            raise InvalidData(path, f"has more lines than {side}_uids.txt", line=line)
        rows.append(uid=uid, text=text, line=line)
    if uids is not None and next(uids, None) is not None:
        raise InvalidData(path, f"has fewer lines than {side}_uids.txt")
    return rows.texts(may_be_empty=side == "test")  # some measure elsewhere


def _read_uids(folder: Path, side: str) -> Iterator[str] | None:
    path = find(folder, f"{side}_uids.txt")
    return None if path is None else (text for _, text in numbered_lines(path))


def _file(folder: Path, name: str) -> Path:
    path = find(folder, name)
    if path is None:
        raise InvalidData(folder, f"{name} or {name}.gz is missing")
    return path


def _one_line_each(texts: tuple[str, ...], side: str) -> Iterator[bytes]:
    for row, text in enumerate(texts):
        if "\n" in text or "\r" in text:
            message = "contains a line break, which the sparse text layout cannot store"
            raise InvalidInput(f"{side} row {row} {message}", field=side)
        yield text.encode()
