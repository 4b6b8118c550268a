"""A table of (query, keyword[, weight]) rows as a data set.

Equal queries become one instance, equal keywords one label, and the weights of a repeated pair are
added. Whitespace at the ends is removed and inside is collapsed; nothing else is changed.
"""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData, InvalidInput
from training.datasets.dataset import (
    DEFAULT_PROPENSITY,
    Dataset,
    Propensity,
    Split,
    Texts,
    pairs_matrix,
)
from training.datasets.sparse_rows import LARGEST, SMALLEST
from training.datasets.tables import Row, read_rows


def from_table(
    path: Path | str,
    *,
    query: str,
    label: str,
    weight: str | None = None,
    label_id: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    name: str | None = None,
    propensity: Propensity = DEFAULT_PROPENSITY,
) -> Dataset:
    """Read a csv, tsv, jsonl (each also .gz) or parquet file; `query` to `label_id` name columns.

    A hash of `seed` and a query's text decides whether all its rows go to train or to test, so rows
    that are added later move no other query. Instances and labels keep the order of their first
    row, and labels of test queries alone stay in the label set. A label's uid is its text or its
    `label_id`; an id must always have the same text, while a text may have several ids. A label
    whose text equals the query is filtered for that query.

    Raises:
        InvalidData: with file, line and column of the first mistake; also for a table without rows
            and a split that leaves one side empty.
        InvalidInput: `test_fraction` is not strictly between 0 and 1.
        MissingExtra: the file is parquet and pyarrow is not installed.
    """
    path = Path(path)
    if not 0 < test_fraction < 1:
        message = f"the test fraction must lie strictly between 0 and 1, not {test_fraction}"
        raise InvalidInput(message, field="test_fraction")
    pairs = _Pairs(path)
    for row in read_rows(path, query=query, label=label, weight=weight, label_id=label_id):
        pairs.append(row)
    queries = tuple(pairs.queries)
    test = _test_rows(queries, path, fraction=test_fraction, seed=seed)
    relevance, filtered = pairs.relevance(), pairs.filtered()
    return Dataset(
        name=name if name is not None else path.name.split(".")[0],
        train=_split(queries, relevance, filtered, np.flatnonzero(~test)),
        test=_split(queries, relevance, filtered, np.flatnonzero(test)),
        labels=Texts(uids=tuple(pairs.labels), texts=tuple(pairs.label_texts)),
        propensity=propensity,
        fields=("title",),
        source=path.name,
    )


def _test_rows(
    queries: tuple[str, ...], path: Path, *, fraction: float, seed: int
) -> NDArray[np.bool_]:
    """Which queries go to test [Q]; `InvalidData` if there are none or one side is empty."""
    if not queries:
        raise InvalidData(path, "holds no rows")
    test = np.array([is_test(text, fraction=fraction, seed=seed) for text in queries], bool)
    if test.all() or not test.any():
        side = "train" if test.all() else "test"
        message = f"the split leaves {side} empty: {len(queries)} queries, fraction {fraction}"
        raise InvalidData(path, f"{message}; choose another fraction or seed")
    return test


def is_test(query: str, *, fraction: float, seed: int) -> bool:
    """Whether a hash of `seed` and `query`, as a number in [0, 1), is below `fraction`."""
    digest = hashlib.sha256(f"{seed}\0{query}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


class _Pairs:
    """The rows that were read so far; Q queries, L labels."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queries: dict[str, int] = {}  # text -> row
        self.labels: dict[str, int] = {}  # id -> column
        self.label_texts: list[str] = []
        self._rows, self._columns, self._weights = array("i"), array("i"), array("d")

    def append(self, row: Row) -> None:
        label = self.labels.setdefault(row.label_id, len(self.labels))
        if label == len(self.label_texts):
            self.label_texts.append(row.label)
        if self.label_texts[label] != row.label:
            earlier = self.label_texts[label]
            message = f"{row.label_id!r} has the text {row.label!r}, but earlier {earlier!r}"
            raise InvalidData(self.path, message, line=row.line, field="label id")
        self._rows.append(self.queries.setdefault(row.query, len(self.queries)))
        self._columns.append(label)
        self._weights.append(row.weight)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.queries), len(self.labels)

    def relevance(self) -> csr_matrix:
        """Return [Q, L], the sums of weights, added as float64 and clipped to float32."""
        positions = (np.array(self._rows, np.int32), np.array(self._columns, np.int32))
        matrix = csr_matrix((np.array(self._weights, np.float64), positions), shape=self.shape)
        matrix.sum_duplicates()
        matrix.data = np.clip(matrix.data, SMALLEST, LARGEST)
        return matrix.astype(np.float32)

    def filtered(self) -> csr_matrix:
        """Return [Q, L] bool: the labels whose text equals the query."""
        same = (
            (self.queries[text], label)
            for label, text in enumerate(self.label_texts)
            if text in self.queries
        )
        return pairs_matrix(same, shape=self.shape)


def _split(
    queries: tuple[str, ...], relevance: csr_matrix, filtered: csr_matrix, rows: np.ndarray
) -> Split:
    texts = tuple(queries[row] for row in rows)
    return Split(
        instances=Texts(uids=texts, texts=texts),
        labels_of=relevance[rows],
        filtered=filtered[rows],
    )
