"""A table of (query, keyword[, weight]) rows as a data set.

Equal queries are one instance, equal keywords one label, and the weights of a repeated pair add up.
Texts are stripped and inner whitespace is collapsed; nothing else is changed, case included.
"""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path

import numpy as np
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

    A query goes to train or test as a whole, by a hash of `seed` and its text alone: rows that are
    added later move no other query. Instances and labels keep the order of their first row; labels
    that only test queries have stay in the label set. A label's uid is its text, or what
    `label_id` says: one id then has one text, while one text may belong to several ids.
    A query that equals a label's text is filtered for that row.

    Raises:
        InvalidData: names file, line and column of the first thing that is wrong; also for a table
            without rows or a split that leaves one side empty.
        InvalidInput: `test_fraction` is not strictly between 0 and 1.
        MissingExtra: a parquet file, and pyarrow is not installed.
    """
    path = Path(path)
    if not 0 < test_fraction < 1:
        message = f"the test fraction must lie strictly between 0 and 1, not {test_fraction}"
        raise InvalidInput(message, field="test_fraction")
    pairs = _Pairs(path)
    for row in read_rows(path, query=query, label=label, weight=weight, label_id=label_id):
        pairs.append(row)
    queries = tuple(pairs.queries)
    test = np.array([is_test(text, fraction=test_fraction, seed=seed) for text in queries], bool)
    if not queries:
        raise InvalidData(path, "holds no rows")
    if test.all() or not test.any():
        side = "train" if test.all() else "test"
        message = f"the split leaves {side} empty: {len(queries)} queries, fraction {test_fraction}"
        raise InvalidData(path, f"{message}; choose another fraction or seed")
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


def is_test(query: str, *, fraction: float, seed: int) -> bool:
    """Whether a hash of `seed` and `query`, as a number in [0, 1), is below `fraction`."""
    digest = hashlib.sha256(f"{seed}\0{query}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


class _Pairs:
    """The rows read so far; Q queries, L labels."""

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
            message = f"{row.label_id!r} was {self.label_texts[label]!r} before, now {row.label!r}"
            raise InvalidData(self.path, message, line=row.line, field="label id")
        self._rows.append(self.queries.setdefault(row.query, len(self.queries)))
        self._columns.append(label)
        self._weights.append(row.weight)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.queries), len(self.labels)

    def relevance(self) -> csr_matrix:
        """Return [Q, L] float32, the sum of weights; summed as float64, clipped to float32."""
        places = (np.array(self._rows, np.int32), np.array(self._columns, np.int32))
        matrix = csr_matrix((np.array(self._weights, np.float64), places), shape=self.shape)
        matrix.sum_duplicates()
        matrix.data = np.clip(matrix.data, SMALLEST, LARGEST)
        return matrix.astype(np.float32)

    def filtered(self) -> csr_matrix:
        """Return [Q, L] bool, the labels whose text is the query."""
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
