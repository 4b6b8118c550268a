"""Builds the data set for the next training: the bundle's data plus what was learned since.

Shapes: N rows, C label columns of the memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.memory.decay import PLAIN
from service.core.text_identity import identity
from service.core.types import Bools, Label
from training.datasets.dataset import DEFAULT_PROPENSITY, Dataset, Split, Texts
from training.datasets.learned.history import History
from training.datasets.learned.training_rows import (
    LearnedItems,
    require_made_from,
    rows_in_bundle,
    rows_of_data,
    served_labels,
)
from training.datasets.pair_weights import SMALLEST
from training.datasets.train_test_split import split_by_hash


@dataclass(frozen=True, kw_only=True)
class LearnedOptions:
    """Options for turning a history into a data set.

    Unless `everything`, only what was learned since the history's `since` is added. The test split
    is that of the given data set; `recent_is_test` adds the history's recent queries to it. With
    neither, a hash draws `test_fraction` of the queries.
    """

    everything: bool = True
    recent_is_test: bool = False
    test_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            given = f"not {self.test_fraction:g}"
            message = f"the test fraction must be at least 0 and below 1, {given}"
            raise InvalidInput(message, field="test_fraction")


def learned_dataset(
    history: History, data: Dataset | None, *, options: LearnedOptions, name: str
) -> Dataset:
    """Return the served memory as a data set; `data` is the one that the bundle was made from.

    Raises `InvalidInput` if the bundle was made from another data set.
    """
    labels = served_labels(history.view)
    train, test = _splits(history, data, labels, options)
    kept = _kept_labels(labels, history, options, [train, test])
    columns = np.array([label.index for label in kept], np.int64)
    items = LearnedItems.of(history.view.items, data, history.counts.items)

    def finished(split: Split) -> Split:
        return replace(
            split,
            labels_of=split.labels_of[:, columns],
            filtered=split.filtered[:, columns],
            metadata_of=items.of_rows(split),
        )

    return Dataset(
        name=name,
        train=finished(train),
        test=finished(test),
        labels=Texts(
            uids=tuple(label.id for label in kept), texts=tuple(label.text for label in kept)
        ),
        propensity=DEFAULT_PROPENSITY if data is None else data.propensity,
        fields=("title",) if data is None else data.fields,
        label_metadata=items.of_labels(kept),
        metadata=items.texts,
        label_fields=tuple(label.metadata for label in kept)
        if any(label.metadata for label in kept)
        else None,
        label_aliases=tuple(label.aliases for label in kept)
        if any(label.aliases for label in kept)
        else None,
        source=f"bundle {history.view.bundle.manifest.name} and its log up to event"
        f" {history.view.version}",
        learned=history.learned,
    )


def _splits(
    history: History, data: Dataset | None, labels: Sequence[Label], options: LearnedOptions
) -> tuple[Split, Split]:
    """Return training and test rows [N, C], including what was learned live."""
    train, test = _rows_before(history, data, labels)
    negative = negative_pairs(history)
    excluded = negative | unlearned_pairs(history)
    train, test = without_pairs(train, excluded), without_pairs(test, excluded)
    live = live_pairs(history, labels, _pairs(train) | _pairs(test), everything=options.everything)
    live = {pair: weight for pair, weight in live.items() if pair not in negative}
    old = set(map(identity, train.instances.texts))
    in_test = _queries_of_test({query for query, _ in live}, train, test)
    of_train = {pair: weight for pair, weight in live.items() if pair[0] not in in_test}
    of_test = {pair: weight for pair, weight in live.items() if pair[0] in in_test}
    taken = {*train.instances.uids, *test.instances.uids}
    train = with_pairs(train, of_train, taken=taken)
    test = with_pairs(test, of_test, taken=taken)
    texts, recent = train.instances.texts, history.counts.recent
    if options.recent_is_test:
        marked = np.array([text in recent and identity(text) not in old for text in texts], bool)
    else:
        fraction = 0.0 if data is not None else options.test_fraction
        marked = split_by_hash(texts, fraction=fraction, seed=options.seed)
    return labeled(train, ~marked), labeled(test).followed_by(labeled(train, marked))


def _rows_before(
    history: History, data: Dataset | None, labels: Sequence[Label]
) -> tuple[Split, Split]:
    """Return training and test rows [N, C]: those of `data`, or the bundle's and no test rows."""
    view = history.view
    if data is None:
        train = rows_in_bundle(view)
        return train, train.select(np.arange(0))
    require_made_from(view.bundle, data)
    return (
        rows_of_data(data.train, data, labels, total=view.labels.columns),
        rows_of_data(data.test, data, labels, total=view.labels.columns),
    )


def _pairs(split: Split) -> set[Pair]:
    rows, columns = split.labels_of.tocoo().coords
    texts = (split.instances.texts[row] for row in rows.tolist())
    return set(zip(texts, columns.tolist(), strict=True))


def _queries_of_test(clicked: set[str], train: Split, test: Split) -> set[str]:
    """Return the clicked queries that belong to the test split: its own, in any spelling.

    A spelling that is already a training row stays in the training split.
    """
    in_train, in_test = set(train.instances.texts), set(test.instances.texts)
    of_test = set(map(identity, in_test))
    others = {query for query in clicked - in_train - in_test if identity(query) in of_test}
    return (clicked & in_test) | others


def _kept_labels(
    labels: Sequence[Label], history: History, options: LearnedOptions, splits: Sequence[Split]
) -> list[Label]:
    """Return all labels; unless `everything`, without old posted labels that no row uses."""
    used = {column for split in splits for column in split.labels_of.indices.tolist()}
    return [
        label
        for label in labels
        if options.everything
        or not label.novel
        or label.id in history.counts.posted
        or label.index in used
    ]


Pair = tuple[str, int]  # query, column of the memory


def negative_pairs(history: History) -> set[Pair]:
    """Return the pairs whose last click was a negative one."""
    return {
        (query, column)
        for query, click in history.view.ownership.clicks.items()
        for column, vote in click.votes.items()
        if vote.weight < 0
    }


def unlearned_pairs(history: History) -> set[Pair]:
    """Return the pairs that were unlearned since the bundle's training data was made."""
    column = history.view.labels.column
    found = ((query, column(label)) for query, label in history.counts.unlearned)
    return {(query, of_label) for query, of_label in found if of_label is not None}


def without_pairs(split: Split, pairs: Collection[Pair]) -> Split:
    """Return a split in which no row with a pair's query has the pair's label."""
    if not pairs:
        return split
    texts, queries = split.instances.texts, {query for query, _ in pairs}
    concerned = np.array([text in queries for text in texts], bool)
    entries = split.labels_of.tocoo()
    kept = np.ones(len(entries.data), bool)
    for entry in np.flatnonzero(concerned[entries.row]).tolist():
        kept[entry] = (texts[entries.row[entry]], int(entries.col[entry])) not in pairs
    positions = (entries.row[kept], entries.col[kept])
    labels_of = csr_matrix((entries.data[kept], positions), shape=split.labels_of.shape)
    return replace(split, labels_of=labels_of)


def live_pairs(
    history: History, labels: Sequence[Label], known: Collection[Pair], *, everything: bool
) -> dict[Pair, float]:
    """Return the weight to add for each live pair; `known` are the pairs of the data set's rows.

    A clicked pair weighs the sum of its counted clicks. Pairs without counted clicks are returned
    if they are not `known`: a query posted with its label weighs 1, and a click from another log's
    snapshot keeps its weight in the memory. Unless `everything`, only pairs written since
    `ClickCounts.since` are returned.
    """
    counts = history.counts
    weights: dict[Pair, float] = {}
    for query, click in history.view.ownership.clicks.items():
        for column in click.columns:
            label = history.view.labels.at(column)
            counted = counts.clicks if label.novel else counts.new_clicks
            weight = counted[label.id].get(query, 0.0)
            if not weight and everything and (query, column) not in known:
                weight = click.votes.get(column, PLAIN).weight
            if weight:
                weights[query, column] = max(weight, SMALLEST)  # a float32 above 0
    for label in labels:
        if everything or label.id in counts.posted:
            for query in label.queries:
                if (query, label.index) not in known:
                    weights.setdefault((query, label.index), 1.0)
    return weights


def with_pairs(
    split: Split, pairs: Mapping[tuple[str, int], float], *, taken: Collection[str]
) -> Split:
    """Add the weights of pairs (query, column), each to the first row with the query's text.

    Queries without a row get a new one at the end, with a uid that is not among `taken`.
    """
    texts, uids = list(split.instances.texts), list(split.instances.uids)
    place: dict[str, int] = {}
    for row, text in enumerate(texts):
        place.setdefault(text, row)
    used = {*taken, *uids}
    for query, _ in pairs:
        if query not in place:
            place[query] = len(texts)
            texts.append(query)
            uids.append(_unused(query, used))
            used.add(uids[-1])
    positions = ([place[query] for query, _ in pairs], [column for _, column in pairs])
    shape = (len(texts), split.labels_of.shape[1])
    added = csr_matrix((np.array([*pairs.values()], np.float32), positions), shape=shape)
    return Split(
        instances=Texts(uids=tuple(uids), texts=tuple(texts)),
        labels_of=csr_matrix(_lengthened(split.labels_of, len(texts)) + added),
        filtered=_lengthened(split.filtered, len(texts)),
        metadata_of=_lengthened(split.metadata_of, len(texts)),
    )


def labeled(split: Split, marked: Bools | bool = True) -> Split:
    """Return the rows that are `marked` [N] and have at least one label."""
    return split.select(np.flatnonzero(marked & (np.diff(split.labels_of.indptr) > 0)))


def _lengthened(matrix: csr_matrix | None, rows: int) -> csr_matrix | None:
    if matrix is None:
        return None
    longer = matrix.copy()
    longer.resize((rows, matrix.shape[1]))
    return longer


def _unused(text: str, used: Collection[str]) -> str:
    """Return `text` as a uid, with apostrophes appended until it is not in `used`."""
    uid = text
    while uid in used:
        uid += "'"
    return uid
