"""Turns a table of (query, keyword[, weight, time, metadata]) rows into a data set.

Equal queries become one instance, equal keywords one label, and the weights of a repeated pair are
added. Texts are equal if their identities are (`service.core.text_identity`): case, spaces and
Unicode form do not matter. The spelling of a text's first row is kept, with single spaces.

A table may have more rows than fit into memory: rows are read one by one, and after each block the
weights of equal pairs are added. So memory grows with the data set, and not with the table. Only a
half-life needs 24 bytes for each row, because weights decay from the newest row on.

Shapes: R rows of a block, Q queries, L labels, M metadata items.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData, InvalidInput, echoed
from service.core.files.lines import CountedBadRows, OnBadRow, stop
from service.core.label_filter import Metadata
from service.core.text_identity import identity
from service.core.types import Bools, Doubles
from training.datasets.dataset import Dataset, Split, Texts, pairs_matrix
from training.datasets.pair_weights import Relevance, decayed, faded, relevance, require_half_life
from training.datasets.propensity import label_frequency
from training.datasets.tables.catalogue import NO_CATALOGUE, Catalogue, UnknownLabel
from training.datasets.tables.rows import Columns, Row, read_rows
from training.datasets.train_test_split import split_by_hash, split_by_time

FEW_QUERIES = 50  # fewer may all fall on one side of a split
BLOCK_ROWS = 2**20  # at least; larger once there are more pairs than that


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Options for turning rows into a data set; raises `InvalidInput` for values out of range.

    Attributes
    ----------
    test_fraction
        The share of queries that go to the test split. With 0 there is none.
    seed
        Another seed gives another split.
    half_life
        Days after which a row weighs half, counted back from the newest row; needs --time.
    unknown_label
        What becomes of rows whose keyword the catalogue does not have, such as a product that is no
        longer sold: keep adds the keyword without fields, drop leaves the row out, refuse makes it
        a bad row.
    relevance
        The relevance of a pair: its summed weight as given, always 1, or ln(1 + weight).
    keep_exact
        Keep pairs whose query equals the keyword as positives. Otherwise such pairs are filtered:
        they are neither trained nor counted.
    keep_case
        Keep queries apart that differ only in case, spaces or Unicode form, for an encoder that
        tells them apart. Otherwise they are one query.
    """

    test_fraction: float = 0.2
    seed: int = 0
    half_life: float | None = None
    unknown_label: UnknownLabel = "keep"
    relevance: Relevance = "given"
    keep_exact: bool = False
    keep_case: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            message = f"the test fraction must be 0 or more and below 1, not {self.test_fraction}"
            raise InvalidInput(message, field="test_fraction")
        require_half_life(self.half_life)
        if self.half_life is not None and self.relevance == "binary":
            raise InvalidInput("binary relevance has no weights that a half-life could change")


class CollectedPairs:
    """The rows that were read so far; with `keep_case`, each spelling is a separate query.

    The labels of the `catalogue` come first, whether a row names them or not.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep_case: bool = False,
        half_life: float | None = None,
        catalogue: Catalogue = NO_CATALOGUE,
        unknown_label: UnknownLabel = "keep",
    ) -> None:
        self.path, self._keep_case, self._catalogue = path, keep_case, catalogue
        self._unknown_label = unknown_label
        self._half_life = half_life
        self._count = self._in_block = 0  # rows
        self.query_texts: list[str] = []
        self.labels = {uid: column for column, uid in enumerate(catalogue.labels.uids)}
        self.label_texts = list(catalogue.labels.texts)
        self.unweighted = 0  # rows with an empty weight
        self.retitled = 0  # rows with another text than the catalogue has for their label id
        self._row_of_query: dict[str, int] = {}  # `_query_key` -> row
        self._other_queries: set[str] = set()  # spellings that are not the first one
        self._other_labels: set[str] = set()
        self.items: dict[str, int] = {}  # metadata item -> column
        # Links to items, as pairs in a flat array: row, item, row, item, ...
        self._query_items, self._label_items = array("i"), array("i")
        self._items_of_queries = self._items_of_labels = csr_matrix((0, 0), dtype=np.bool_)
        self._rows, self._columns = array("i"), array("i")  # [R]
        self._weights, self._times = array("d"), array("d")  # [R]
        self._sums = csr_matrix((0, 0), dtype=np.float64)  # of the blocks before, [Q, L]
        self._newest = np.empty(0)  # times of these blocks' queries, [Q]
        self._period = math.inf, -math.inf  # of these blocks' rows
        self._unknown_rows = 0  # rows whose label the catalogue does not have
        self._dropped: set[str] = set()  # ids of labels whose rows were left out

    def append(self, row: Row, on_bad: OnBadRow, *, part: Path) -> None:
        """Add a row of `part`; `on_bad` is called instead if it is not clear which label it names.

        Such a label's id had another text before, in the table itself, or its text has several ids
        in the catalogue.
        """
        try:
            label = self._column(row)
        except ValueError as error:
            on_bad(InvalidData(part, str(error), line=row.line, field="label id"))
            return
        if label is None:
            self._unknown_rows += 1
            return
        query = self._row_of_query.setdefault(self._query_key(row.query), len(self.query_texts))
        if query == len(self.query_texts):
            self.query_texts.append(row.query)
        elif self.query_texts[query] != row.query:
            self._other_queries.add(row.query)
        self.unweighted += row.unweighted
        self._link(self._query_items, query, row.metadata)
        self._link(self._label_items, label, row.label_metadata)
        self._rows.append(query)
        self._columns.append(label)
        self._weights.append(row.weight)
        self._times.append(row.time)
        self._count += 1
        self._unknown_rows += label >= len(self._catalogue.labels)
        self._in_block += 1
        if self._in_block >= max(BLOCK_ROWS, self._sums.nnz // 2):
            self._end_block()

    def _end_block(self) -> None:
        """Add the block's rows to the sums, and forget them; with a half-life, keep the rows."""
        self._items_of_queries = self.items_of_queries()
        self._items_of_labels = self.items_of_labels()
        del self._query_items[:], self._label_items[:]
        self._in_block = 0
        if self._half_life is None:
            self._newest, self._period = self.newest_of_queries(), self.period()
            self._sums = self.summed()
            del self._rows[:], self._columns[:], self._weights[:], self._times[:]

    def _column(self, row: Row) -> int | None:
        """Return the column of a row's label; None if the row is to be left out.

        Raises `ValueError` with what is not clear or not allowed.
        """
        named, label_id = row.label, row.label_id
        if label_id is None:
            label_id = self._catalogue.id_of(named)
        if self._unknown_label != "keep" and label_id not in self.labels:
            if self._unknown_label == "refuse":
                raise ValueError(f"the catalogue has no label {echoed(row.label_id or named)}")
            self._dropped.add(label_id)
            return None
        label = self.labels.setdefault(label_id, len(self.labels))
        if label == len(self.label_texts):
            self.label_texts.append(named)
        known = self.label_texts[label]
        if named == known or (self._catalogue.has_ids and named == label_id):
            return label
        if identity(known) == identity(named):
            self._other_labels.add(named)
        elif label < len(self._catalogue.labels):
            self.retitled += 1
        else:
            raise ValueError(f"{label_id!r} has the text {named!r}, but earlier {known!r}")
        return label

    def __len__(self) -> int:
        return self._count

    @property
    def dropped(self) -> int:
        """The number of rows that were left out, since the catalogue does not have their label."""
        return self._unknown_rows if self._unknown_label == "drop" else 0

    def catalogue_facts(self) -> CatalogueFacts:
        """Count labels and rows by whether catalogue and table have them."""
        of_catalogue = len(self._catalogue.labels)
        named = np.unique(np.concatenate((self._sums.indices, np.array(self._columns, np.int32))))
        return CatalogueFacts(
            labels=of_catalogue,
            unnamed=of_catalogue - int((named < of_catalogue).sum()),
            unknown_rows=self._unknown_rows,
            unknown_labels=len(self._dropped) or int((named >= of_catalogue).sum()),
            retitled=self.retitled,
        )

    def label_fields(self) -> tuple[Metadata, ...] | None:
        """Return the fields of each label [L], or None if the catalogue has none."""
        fields = self._catalogue.fields
        return None if fields is None else (*fields, *({} for _ in range(self._unknown)))

    def label_aliases(self) -> tuple[tuple[str, ...], ...] | None:
        """Return the aliases of each label [L], or None if the catalogue has none."""
        aliases = self._catalogue.aliases
        return None if aliases is None else (*aliases, *[()] * self._unknown)

    @property
    def _unknown(self) -> int:
        """The number of labels that the catalogue does not have; they come last."""
        return len(self.labels) - len(self._catalogue.labels)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of queries and labels, (Q, L)."""
        return len(self.query_texts), len(self.labels)

    @property
    def folded(self) -> tuple[int, int]:
        """The number of spellings of queries and of labels that are not the first one."""
        return len(self._other_queries), len(self._other_labels)

    def summed(self) -> csr_matrix:
        """Return the summed weight of each pair, [Q, L] float64."""
        weights: Doubles = np.array(self._weights, np.float64)
        if self._half_life is not None:
            times = np.array(self._times, np.float64)
            weights = decayed(weights, times, half_life=self._half_life)
        positions = (np.array(self._rows, np.int32), np.array(self._columns, np.int32))
        matrix = csr_matrix((weights, positions), shape=self.shape)
        matrix.sum_duplicates()
        return _added(self._sums, matrix)

    def faded(self) -> int:
        """Count the rows that are too old to lose more of their weight."""
        if self._half_life is None:
            return 0
        return faded(np.array(self._times, np.float64), half_life=self._half_life)

    def newest_of_queries(self) -> Doubles:
        """Return the time of each query's newest row, [Q]."""
        newest = np.full(len(self.query_texts), -np.inf)
        newest[: len(self._newest)] = self._newest
        np.maximum.at(newest, np.array(self._rows, np.int32), np.array(self._times, np.float64))
        return newest

    def period(self) -> tuple[float, float]:
        """Return the times of the oldest and the newest row."""
        oldest, newest = self._period
        return min(oldest, min(self._times, default=oldest)), max(
            newest, max(self._times, default=newest)
        )

    def same_text(self) -> csr_matrix:
        """Mark the pairs [Q, L] whose query and label have the same text."""
        keys = map(self._query_key, self.label_texts)
        rows = enumerate(map(self._row_of_query.get, keys))
        same = ((row, label) for label, row in rows if row is not None)
        return pairs_matrix(same, shape=self.shape)

    def items_of_queries(self) -> csr_matrix:
        """Return the items of each query, [Q, M] float32; every entry is 1."""
        shape = len(self.query_texts), len(self.items)
        return _linked(self._items_of_queries, self._query_items, shape)

    def items_of_labels(self) -> csr_matrix:
        """Return the items of each label, [L, M] float32; every entry is 1."""
        shape = len(self.labels), len(self.items)
        return _linked(self._items_of_labels, self._label_items, shape)

    def _link(self, links: array[int], row: int, items: Sequence[str]) -> None:
        for item in items:
            links.extend((row, self.items.setdefault(item, len(self.items))))

    def _query_key(self, text: str) -> str:
        return text if self._keep_case else identity(text)


def _added(before: csr_matrix, block: csr_matrix) -> csr_matrix:
    """Return the sum of two matrices, of which `before` may have fewer rows and columns."""
    if not before.nnz:
        return block
    before = before.copy()
    before.resize(block.shape)
    return csr_matrix(before + block)


def _linked(before: csr_matrix, links: array[int], shape: tuple[int, int]) -> csr_matrix:
    """Return the links of earlier blocks and of a flat array, float32; every entry is 1."""
    block = pairs_matrix(zip(links[::2], links[1::2], strict=True), shape=shape)
    return _added(before.astype(np.bool_), block).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class CatalogueFacts:
    """How a catalogue and a table of pairs agree."""

    labels: int
    unnamed: int  # labels that no row of the table names
    unknown_rows: int  # rows whose label the catalogue does not have
    unknown_labels: int  # the labels of these rows
    retitled: int  # rows with another text than the catalogue has for their label id


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """Counts of a table's rows and pairs."""

    rows: int  # all rows read, bad ones included
    merged: int  # rows that repeat a pair
    folded_queries: int  # spellings that were merged into the first one of the same query
    folded_labels: int
    unweighted: int  # rows with an empty weight
    faded: int  # rows that are too old to lose more of their weight
    exact: int  # pairs whose query equals the keyword
    unsplit: bool  # whether there is no test split since queries are few
    test_only: int  # labels that only test rows have
    period: tuple[float, float] | None  # Unix seconds of the oldest and the newest row
    catalogue: CatalogueFacts | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TableData:
    """The data set of a table, and the facts about its rows."""

    dataset: Dataset
    facts: TableFacts


def from_table(
    path: Path | str,
    columns: Columns,
    options: PairOptions = PairOptions(),
    *,
    parts: Sequence[Path] = (),
    name: str | None = None,
    delimiter: str | None = None,
    on_bad: OnBadRow = stop,
    catalogue: Catalogue = NO_CATALOGUE,
) -> TableData:
    """Read a csv, tsv, jsonl (each also .gz) or parquet file.

    If there are `parts`, these files are read one after the other as one table, and `path` only
    names the table.

    All rows of a query go to the same split, chosen by time if there is a column of times.
    Otherwise a hash of the text's identity decides, so rows added later move no other query.

    Instances and labels keep the order of their first row. Labels that only test queries have are
    kept too. A label's uid is its id, or the identity of its text. An id must always have the
    same text, while a text may have several ids. A label whose text equals the query is filtered
    for that query. A query or label has the metadata items of all its rows.

    All labels of the `catalogue` are in the data set, with its texts, ids, aliases and fields. If
    there is no column of label ids, the column of labels holds ids or texts of the catalogue, but
    no aliases. Labels that the catalogue does not have are kept, without aliases and fields.

    `delimiter` separates the columns of csv files. `on_bad` is called with each bad row's error.

    Raises:
        InvalidData: with file, line and column of the mistake; also for a table without good rows,
            for metadata columns that are all empty, and for a split of many queries that leaves one
            side empty.
        InvalidInput: a half-life without a column of times, or a column of label ids with a
            catalogue that has none.
        MissingExtra: the file is parquet and pyarrow is not installed.
    """
    if options.half_life is not None and columns.time is None:
        raise InvalidInput("a half-life needs a column of times: --time", field="half_life")
    if options.unknown_label != "keep" and not len(catalogue.labels):
        raise InvalidInput("--unknown-label goes with --catalogue", field="unknown_label")
    if len(catalogue.labels) and columns.label_id is not None and not catalogue.has_ids:
        message = "--label-id needs --catalogue-id: both tables must have the same ids"
        raise InvalidInput(message, field="catalogue_id")
    bad = CountedBadRows(on_bad)
    pairs = CollectedPairs(
        Path(path),
        keep_case=options.keep_case,
        half_life=options.half_life,
        catalogue=catalogue,
        unknown_label=options.unknown_label,
    )
    for part in parts or [pairs.path]:
        for row in read_rows(
            part, columns, delimiter=delimiter, on_bad=bad, labels_are_ids=catalogue.has_ids
        ):
            pairs.append(row, bad, part=part)
    if not len(pairs):
        all_bad = f"all {bad.count:,} rows are bad; the first: {bad.first}" if bad.count else ""
        unknown = "the catalogue has the label of no row" if pairs.dropped else ""
        raise InvalidData(pairs.path, all_bad or unknown or "holds no rows")
    test = _test_rows(pairs, options, by_time=columns.time is not None)
    weights = pairs.summed()
    same = pairs.same_text()
    filtered = csr_matrix(same.shape, dtype=bool) if options.keep_exact else same
    _refuse_unusable(pairs.path, weights, filtered)
    values = relevance(weights, scale=options.relevance)
    metadata, of_queries, of_labels = _metadata(pairs, columns)
    whole = Split(
        instances=Texts.named_by_text(pairs.query_texts),
        labels_of=values,
        filtered=filtered,
        metadata_of=of_queries,
    )
    dataset = Dataset(
        name=name if name is not None else pairs.path.name.split(".")[0],
        train=whole.select(np.flatnonzero(~test)),
        test=whole.select(np.flatnonzero(test)),
        labels=Texts(uids=tuple(pairs.labels), texts=tuple(pairs.label_texts)),
        fields=("title",),
        label_metadata=of_labels,
        metadata=metadata,
        label_fields=pairs.label_fields(),
        label_aliases=pairs.label_aliases(),
        source=pairs.path.name,
    )
    in_train, in_test = (
        label_frequency(split.labels_of) > 0 for split in (dataset.train, dataset.test)
    )
    facts = TableFacts(
        rows=len(pairs) + pairs.dropped + bad.count,
        merged=len(pairs) - values.nnz,
        folded_queries=pairs.folded[0],
        folded_labels=pairs.folded[1],
        unweighted=pairs.unweighted,
        faded=pairs.faded(),
        exact=int((values != 0).multiply(same).nnz),
        unsplit=options.test_fraction > 0 and not test.any(),
        test_only=int((in_test & ~in_train).sum()),
        period=pairs.period() if columns.time is not None else None,
        catalogue=pairs.catalogue_facts() if len(catalogue.labels) else None,
    )
    return TableData(dataset=dataset, facts=facts)


def _refuse_unusable(path: Path, weights: csr_matrix, filtered: csr_matrix) -> None:
    """Raise `InvalidData` for weights that cannot be stored, and if every pair is filtered."""
    if weights.data.max(initial=0) > np.finfo(np.float32).max:
        raise InvalidData(path, "the weights of a pair add up to a number that is too large")
    if (weights != 0).multiply(filtered).nnz == weights.nnz:
        raise InvalidData(
            path,
            "in every row the keyword equals the query, so that no pair is left to learn from;"
            " name another column, or pass --keep-exact",
        )


def _test_rows(pairs: CollectedPairs, options: PairOptions, *, by_time: bool) -> Bools:
    """Mark the test queries [Q], none if a split of few queries leaves a side empty.

    Raises `InvalidData` if it does so with many queries.
    """
    queries, fraction = pairs.query_texts, options.test_fraction
    if by_time:
        test = split_by_time(queries, pairs.newest_of_queries(), fraction=fraction)
    else:
        test = split_by_hash(queries, fraction=fraction, seed=options.seed)
    if test.all() or (fraction and not test.any()):
        if len(queries) < FEW_QUERIES:
            return np.zeros(len(queries), bool)
        side = "train" if test.all() else "test"
        message = f"the split leaves {side} empty: {len(queries)} queries, fraction {fraction}"
        advice = "choose another fraction or seed, or no test split by --test-fraction 0"
        raise InvalidData(pairs.path, f"{message}; {advice}")
    return test


def _metadata(
    pairs: CollectedPairs, columns: Columns
) -> tuple[Texts, csr_matrix, csr_matrix] | tuple[None, None, None]:
    """Return the metadata items, and the matrices of queries' [Q, M] and labels' [L, M] items.

    All are None without metadata columns. Raises `InvalidData` if these are empty in all rows.
    """
    names = (*columns.metadata, *columns.label_metadata)
    if not names:
        return None, None, None
    if not pairs.items:
        raise InvalidData(pairs.path, f"has no metadata in any row of {', '.join(names)}")
    return Texts.named_by_text(pairs.items), pairs.items_of_queries(), pairs.items_of_labels()
