"""A table of (query, keyword[, weight, time]) rows as a data set.

Equal queries become one instance, equal keywords one label, and the weights of a repeated pair are
added. Whitespace at the ends is removed and inside is collapsed; nothing else is changed.

Shapes: R rows of the table, Q queries, L labels.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData, InvalidInput
from service.core.files.bad_rows import CountedBadRows, OnBadRow, stop
from service.core.types import Bools, Doubles
from training.datasets.dataset import (
    DEFAULT_PROPENSITY,
    Dataset,
    Propensity,
    Split,
    Texts,
    pairs_matrix,
)
from training.datasets.pair_weights import Relevance, decayed, relevance
from training.datasets.propensity import label_frequency
from training.datasets.tables.rows import Columns, Row, read_rows
from training.datasets.train_test_split import split_by_hash, split_by_time


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """How rows become a data set; raises `InvalidInput` for values out of range.

    Attributes
    ----------
    test_fraction
        The share of queries that go to the test split. With 0 there is none.
    seed
        Another seed gives another split.
    half_life
        Days after which a row weighs half, counted back from the newest row; needs --time.
    relevance
        The relevance of a pair: its summed weight as given, always 1, or ln(1 + weight).
    keep_exact
        Keep pairs whose query equals the keyword as positives. Otherwise such pairs are filtered:
        they are neither trained nor counted.
    """

    test_fraction: float = 0.2
    seed: int = 0
    half_life: float | None = None
    relevance: Relevance = "given"
    keep_exact: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            message = f"the test fraction must be 0 or more and below 1, not {self.test_fraction}"
            raise InvalidInput(message, field="test_fraction")
        if self.half_life is not None and not 0 < self.half_life < float("inf"):
            message = f"the half-life must be a positive number of days, not {self.half_life}"
            raise InvalidInput(message, field="half_life")
        if self.half_life is not None and self.relevance == "binary":
            raise InvalidInput("binary relevance has no weights that a half-life could change")


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What became of the rows of a table."""

    rows: int  # that were read, bad ones included
    rejected: int
    merged: int  # rows that repeat a pair
    exact: int  # pairs whose query equals the keyword
    test_only: int  # labels without a training row
    period: tuple[float, float] | None  # Unix seconds of the oldest and the newest row


@dataclass(frozen=True, kw_only=True, eq=False)
class TableData:
    """The data set of a table, and what was done to its rows."""

    dataset: Dataset
    facts: TableFacts


def from_table(
    path: Path | str,
    columns: Columns,
    options: PairOptions = PairOptions(),
    *,
    name: str | None = None,
    propensity: Propensity = DEFAULT_PROPENSITY,
    delimiter: str | None = None,
    on_bad: OnBadRow = stop,
) -> TableData:
    """Read a csv, tsv, jsonl (each also .gz) or parquet file.

    All rows of a query go to train, or all to test: by a hash of its text, so that rows that are
    added later move no other query, or by time where there is a column of times. Instances and
    labels keep the order of their first row, and labels of test queries alone stay in the label
    set. A label's uid is its text or its id; an id must always have the same text, while a text may
    have several ids. A label whose text equals the query is filtered for that query.

    `delimiter` is for csv files, and `on_bad` gets the error of each bad row.

    Raises:
        InvalidData: with file, line and column of the mistake; also for a table without good rows
            and a split that leaves one side empty.
        InvalidInput: a half-life without a column of times.
        MissingExtra: the file is parquet and pyarrow is not installed.
    """
    if options.half_life is not None and columns.time is None:
        raise InvalidInput("a half-life needs a column of times: --time", field="half_life")
    pairs, rejected = _read(Path(path), columns, delimiter=delimiter, on_bad=on_bad)
    test = _test_rows(pairs, options, by_time=columns.time is not None)
    weights = pairs.summed(options.half_life)
    same = pairs.same_text()
    filtered = csr_matrix(same.shape, dtype=bool) if options.keep_exact else same
    _refuse_unusable(pairs.path, weights, filtered)
    values = relevance(weights, scale=options.relevance)
    queries = tuple(pairs.queries)
    dataset = Dataset(
        name=name if name is not None else pairs.path.name.split(".")[0],
        train=_split(queries, values, filtered, np.flatnonzero(~test)),
        test=_split(queries, values, filtered, np.flatnonzero(test)),
        labels=Texts(uids=tuple(pairs.labels), texts=tuple(pairs.label_texts)),
        propensity=propensity,
        fields=("title",),
        source=pairs.path.name,
    )
    facts = TableFacts(
        rows=len(pairs) + rejected,
        rejected=rejected,
        merged=len(pairs) - values.nnz,
        exact=int((values != 0).multiply(same).nnz),
        test_only=int((label_frequency(dataset.train.labels_of) == 0).sum()),
        period=pairs.period() if columns.time is not None else None,
    )
    return TableData(dataset=dataset, facts=facts)


def _read(
    path: Path, columns: Columns, *, delimiter: str | None, on_bad: OnBadRow
) -> tuple[_Pairs, int]:
    """The pairs of a table's good rows, at least one, and the number of bad rows."""
    pairs, bad = _Pairs(path), CountedBadRows(on_bad)
    for row in read_rows(path, columns, delimiter=delimiter, on_bad=bad):
        pairs.append(row, bad)
    if not len(pairs):
        all_bad = f"all {bad.count:,} rows are bad; the first: {bad.first}" if bad.count else ""
        raise InvalidData(path, all_bad or "holds no rows")
    return pairs, bad.count


def _refuse_unusable(path: Path, weights: csr_matrix, filtered: csr_matrix) -> None:
    """Raise `InvalidData` for weights that cannot be stored, and where every pair is filtered."""
    if weights.data.max(initial=0) > np.finfo(np.float32).max:
        raise InvalidData(path, "the weights of a pair add up to a number that is too large")
    if (weights != 0).multiply(filtered).nnz == weights.nnz:
        raise InvalidData(
            path,
            "in every row the keyword equals the query, so that no pair is left to learn from;"
            " name another column, or pass --keep-exact",
        )


def _test_rows(pairs: _Pairs, options: PairOptions, *, by_time: bool) -> Bools:
    """Which queries go to test [Q]; `InvalidData` if one side is empty against the options."""
    queries, fraction = tuple(pairs.queries), options.test_fraction
    if by_time:
        test = split_by_time(queries, pairs.newest_of_queries(), fraction=fraction)
    else:
        test = split_by_hash(queries, fraction=fraction, seed=options.seed)
    if test.all() or (fraction and not test.any()):
        side = "train" if test.all() else "test"
        message = f"the split leaves {side} empty: {len(queries)} queries, fraction {fraction}"
        advice = "choose another fraction or seed, or no test split by --test-fraction 0"
        raise InvalidData(pairs.path, f"{message}; {advice}")
    return test


class _Pairs:
    """The rows that were read so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queries: dict[str, int] = {}  # text -> row
        self.labels: dict[str, int] = {}  # id -> column
        self.label_texts: list[str] = []
        self._rows, self._columns = array("i"), array("i")  # [R]
        self._weights, self._times = array("d"), array("d")  # [R]

    def append(self, row: Row, on_bad: OnBadRow) -> None:
        """Take a row, unless its label id had another text before."""
        label = self.labels.setdefault(row.label_id, len(self.labels))
        if label == len(self.label_texts):
            self.label_texts.append(row.label)
        if self.label_texts[label] != row.label:
            earlier = self.label_texts[label]
            message = f"{row.label_id!r} has the text {row.label!r}, but earlier {earlier!r}"
            on_bad(InvalidData(self.path, message, line=row.line, field="label id"))
            return
        self._rows.append(self.queries.setdefault(row.query, len(self.queries)))
        self._columns.append(label)
        self._weights.append(row.weight)
        self._times.append(row.time)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.queries), len(self.labels)

    def summed(self, half_life: float | None) -> csr_matrix:
        """Return [Q, L] float64, the sums of weights."""
        weights: Doubles = np.array(self._weights, np.float64)
        if half_life is not None:
            weights = decayed(weights, np.array(self._times, np.float64), half_life=half_life)
        positions = (np.array(self._rows, np.int32), np.array(self._columns, np.int32))
        matrix = csr_matrix((weights, positions), shape=self.shape)
        matrix.sum_duplicates()
        return matrix

    def newest_of_queries(self) -> Doubles:
        """Return [Q], the time of each query's newest row."""
        newest = np.full(len(self.queries), -np.inf)
        np.maximum.at(newest, np.array(self._rows, np.int32), np.array(self._times, np.float64))
        return newest

    def period(self) -> tuple[float, float]:
        """The times of the oldest and the newest row."""
        return min(self._times), max(self._times)

    def same_text(self) -> csr_matrix:
        """Return [Q, L] bool: the labels whose text equals the query."""
        same = (
            (self.queries[text], label)
            for label, text in enumerate(self.label_texts)
            if text in self.queries
        )
        return pairs_matrix(same, shape=self.shape)


def _split(
    queries: tuple[str, ...], values: csr_matrix, filtered: csr_matrix, rows: np.ndarray
) -> Split:
    texts = tuple(queries[row] for row in rows)
    return Split(
        instances=Texts(uids=texts, texts=texts),
        labels_of=values[rows],
        filtered=filtered[rows],
    )
