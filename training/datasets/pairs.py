"""A table of (query, keyword[, weight, time, metadata]) rows as a data set.

Equal queries become one instance, equal keywords one label, and the weights of a repeated pair are
added. Whitespace at the ends is removed and inside is collapsed; nothing else is changed.

Shapes: Q queries, L labels, M metadata items.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData, InvalidInput
from service.core.files.bad_rows import CountedBadRows, OnBadRow, stop
from service.core.types import Bools, Rows
from training.datasets.dataset import (
    DEFAULT_PROPENSITY,
    Dataset,
    Propensity,
    Split,
    Texts,
)
from training.datasets.pair_weights import Relevance, relevance
from training.datasets.propensity import label_frequency
from training.datasets.tables.collected_pairs import CollectedPairs
from training.datasets.tables.rows import Columns, read_rows
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
    have several ids. A label whose text equals the query is filtered for that query. Metadata items
    of a query or a label are those of all its rows.

    `delimiter` is for csv files, and `on_bad` gets the error of each bad row.

    Raises:
        InvalidData: with file, line and column of the mistake; also for a table without good rows,
            for columns of metadata without any, and a split that leaves one side empty.
        InvalidInput: a half-life without a column of times.
        MissingExtra: the file is parquet and pyarrow is not installed.
    """
    if options.half_life is not None and columns.time is None:
        raise InvalidInput("a half-life needs a column of times: --time", field="half_life")
    pairs, rejected = _read(Path(path), columns, delimiter=delimiter, on_bad=on_bad)
    test = _test_rows(pairs, options, by_time=columns.time is not None)
    weights = pairs.summed(options.half_life)
    same, metadata = pairs.same_text(), _metadata(pairs, columns)
    filtered = csr_matrix(same.shape, dtype=bool) if options.keep_exact else same
    _refuse_unusable(pairs.path, weights, filtered)
    values = relevance(weights, scale=options.relevance)
    whole = _all_rows(pairs, values, filtered, linked=metadata is not None)
    dataset = Dataset(
        name=name if name is not None else pairs.path.name.split(".")[0],
        train=_rows_of(whole, np.flatnonzero(~test)),
        test=_rows_of(whole, np.flatnonzero(test)),
        labels=Texts(uids=tuple(pairs.labels), texts=tuple(pairs.label_texts)),
        propensity=propensity,
        fields=("title",),
        label_metadata=None if metadata is None else pairs.items.of_labels(len(pairs.labels)),
        metadata=metadata,
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
) -> tuple[CollectedPairs, int]:
    """The pairs of a table's good rows, at least one, and the number of bad rows."""
    pairs, bad = CollectedPairs(path), CountedBadRows(on_bad)
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


def _test_rows(pairs: CollectedPairs, options: PairOptions, *, by_time: bool) -> Bools:
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


def _metadata(pairs: CollectedPairs, columns: Columns) -> Texts | None:
    """The metadata items, None where no column holds any; `InvalidData` where all are empty."""
    names = (*columns.metadata, *columns.label_metadata)
    if not names:
        return None
    if not len(pairs.items):
        raise InvalidData(pairs.path, f"has no metadata in any row of {', '.join(names)}")
    return pairs.items.texts()


def _all_rows(
    pairs: CollectedPairs, values: csr_matrix, filtered: csr_matrix, *, linked: bool
) -> Split:
    """All queries with their pairs [Q, L] and, where they are `linked` to any, their items."""
    queries = tuple(pairs.queries)
    return Split(
        instances=Texts(uids=queries, texts=queries),
        labels_of=values,
        filtered=filtered,
        metadata_of=pairs.items.of_queries(len(queries)) if linked else None,
    )


def _rows_of(split: Split, rows: Rows) -> Split:
    """The given rows of the split."""
    texts = tuple(split.instances.texts[row] for row in rows.tolist())
    return Split(
        instances=Texts(uids=texts, texts=texts),
        labels_of=split.labels_of[rows],
        filtered=split.filtered[rows],
        metadata_of=None if split.metadata_of is None else split.metadata_of[rows],
    )
