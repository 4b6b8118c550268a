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
from training.datasets.dataset import Dataset, Texts
from training.datasets.lf_xmc.rows import Rows, SparseRows, TextRows, is_relevance

REQUIRED = (
    "trn_X_Y.txt",
    "tst_X_Y.txt",
    "train_raw_texts.txt",
    "test_raw_texts.txt",
    "label_raw_texts.txt",
)


def read(folder: Path, fields: tuple[str, ...]) -> tuple[Rows, Rows, Rows, None]:
    """Return labels, train and test rows of a folder with all `REQUIRED` files, and no metadata.

    `fields` is ignored: a text has a single field. Raises `InvalidData` with file and line.
    """
    labels = _read_texts(folder, "label")

    def rows(side: str, matrix_name: str) -> Rows:
        texts = _read_texts(folder, side)
        shape = (len(texts), len(labels))
        return Rows(texts, read_matrix(_path(folder, matrix_name), shape=shape))

    return Rows(labels), rows("train", "trn_X_Y.txt"), rows("test", "tst_X_Y.txt"), None


def write(dataset: Dataset, folder: Path) -> None:
    """Write files from which `read` returns an equal data set.

    Raises `InvalidInput` for what this form cannot store: metadata, and texts or uids with a line
    break.
    """
    if dataset.metadata is not None:
        raise InvalidInput("the sparse text layout cannot store metadata", field="metadata")
    sides = (
        ("label", dataset.labels),
        ("train", dataset.train.instances),
        ("test", dataset.test.instances),
    )
    for side, texts in sides:
        write_lines(folder / f"{side}_raw_texts.txt.gz", _one_line_each(texts.texts, side))
        write_lines(folder / f"{side}_uids.txt.gz", _one_line_each(texts.uids, side))
    for name, split in (("trn_X_Y.txt", dataset.train), ("tst_X_Y.txt", dataset.test)):
        write_lines(folder / f"{name}.gz", matrix_lines(split.labels_of))


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
    """Yield the header and the rows of a file from which `read_matrix` returns the same matrix."""
    yield b"%d %d" % matrix.shape
    values = matrix.data.astype(np.float32, copy=False)
    for start, stop in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        # str writes a float32 in the shortest form that is read back exactly.
        pairs = zip(matrix.indices[start:stop], values[start:stop], strict=True)
        yield " ".join(f"{column}:{value!s}" for column, value in pairs).encode()


def _entries(text: str, *, path: Path, line: int, columns: int) -> tuple[list[int], list[float]]:
    """Return labels and relevances of a line; raises `InvalidData` for the first bad one."""
    relevance_of: dict[int, float] = {}

    def error(message: str, field: str = "") -> InvalidData:
        return InvalidData(path, message, line=line, field=field)

    for word in text.split():
        name, _, value = word.partition(":")
        try:
            relevance = float(value)
        except ValueError:
            name = ""
        # A longer label is out of range anyway, and int() might refuse it.
        if not (name.isascii() and name.isdigit() and len(name) <= 18):
            raise error(f"expected `label:relevance`, not {word[:80]!r}")
        label = int(name)
        if label >= columns:
            raise error(f"{label} is out of range: it must be below {columns}", "label")
        if not is_relevance(relevance):
            raise error(f"{relevance!r} is not a positive finite number", "relevance")
        if label in relevance_of:
            raise error("a label is repeated", "label")
        relevance_of[label] = relevance
    return [*relevance_of], [*relevance_of.values()]


def _read_texts(folder: Path, side: str) -> Texts:
    path = _path(folder, f"{side}_raw_texts.txt")
    uid_file = find(folder, f"{side}_uids.txt")
    uids = None if uid_file is None else (uid for _, uid in numbered_lines(uid_file))
    rows = TextRows(path)
    for line, text in numbered_lines(path):
        uid = str(line - 1) if uids is None else next(uids, None)
        if uid is None:
            raise InvalidData(path, f"has more lines than {side}_uids.txt", line=line)
        rows.append(uid=uid, text=text, line=line)
    if uids is not None and next(uids, None) is not None:
        raise InvalidData(path, f"has fewer lines than {side}_uids.txt")
    return rows.texts(may_be_empty=side == "test")  # a data set may have no test rows


def _path(folder: Path, name: str) -> Path:
    return find(folder, name) or folder / name


def _one_line_each(texts: tuple[str, ...], side: str) -> Iterator[bytes]:
    for row, text in enumerate(texts):
        if "\n" in text or "\r" in text:
            message = "contains a line break, which the sparse text layout cannot store"
            raise InvalidInput(f"{side} row {row} {message}", field=side)
        yield text.encode()
