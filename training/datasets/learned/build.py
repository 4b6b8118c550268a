"""The data set for the next training: what a bundle was made from and what was learned since.

Shapes: N rows, C columns of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from service.core.errors import InvalidInput
from service.core.types import Label
from training.datasets.dataset import DEFAULT_PROPENSITY, Dataset, Split, Texts
from training.datasets.learned.history import History
from training.datasets.learned.live_pairs import Pair, live_pairs
from training.datasets.learned.served_items import LearnedItems
from training.datasets.learned.split_rows import joined, select, with_columns, with_pairs
from training.datasets.learned.training_rows import (
    require_made_from,
    rows_in_bundle,
    rows_of_data,
    served_labels,
)
from training.datasets.train_test_split import is_test


@dataclass(frozen=True, kw_only=True)
class LearnedOptions:
    """What becomes of a history.

    Unless `everything`, only what was learned from the history's `since` on is added to the
    training rows. The test split is that of the given data set, or a hash sends `test_fraction` of
    the queries there; with `recent_is_test` the history's recent queries go there.
    """

    everything: bool = True
    recent_is_test: bool = False
    test_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            message = (
                f"the test fraction must be at least 0 and below 1, not {self.test_fraction:g}"
            )
            raise InvalidInput(message, field="test_fraction")


def learned_dataset(
    history: History, data: Dataset | None, *, options: LearnedOptions, name: str
) -> Dataset:
    """Return what is served as a data set; `data` is the one that the bundle was made from.

    Raises `InvalidInput` if the bundle was made from another one.
    """
    labels = served_labels(history.view)
    train, test = _splits(history, data, labels, options)
    kept = _kept_labels(labels, history, options, [train, test])
    columns = np.array([label.index for label in kept], np.int64)
    items = LearnedItems.of(history.view.items, data, history.item_writes)
    return Dataset(
        name=name,
        train=replace(with_columns(train, columns), metadata_of=items.of_rows(train)),
        test=replace(with_columns(test, columns), metadata_of=items.of_rows(test)),
        labels=Texts(
            uids=tuple(label.id for label in kept), texts=tuple(label.text for label in kept)
        ),
        propensity=DEFAULT_PROPENSITY if data is None else data.propensity,
        fields=("title",) if data is None else data.fields,
        label_metadata=items.of_labels(kept),
        metadata=items.texts,
        source=f"bundle {history.view.bundle.manifest.name} and its log up to event"
        f" {history.view.version}",
        learned=history.learned,
    )


def _splits(
    history: History, data: Dataset | None, labels: Sequence[Label], options: LearnedOptions
) -> tuple[Split, Split]:
    """Training and test rows [N, C] with what was learned live."""
    train, test = _rows_before(history, data, labels)
    known = _pairs(train) | _pairs(test)
    live = live_pairs(history, labels, known, everything=options.everything)
    in_test, old = set(test.instances.texts), set(train.instances.texts)
    taken = {*train.instances.uids, *test.instances.uids}
    train = with_pairs(train, _of(live, in_test, False), taken=taken)
    test = with_pairs(test, _of(live, in_test, True), taken=taken)
    marked = _test_rows(train, old, history, options, carried=data is not None)
    test = joined(select(test, np.ones(len(test), bool)), select(train, marked))
    return select(train, ~marked), test


def _rows_before(
    history: History, data: Dataset | None, labels: Sequence[Label]
) -> tuple[Split, Split]:
    """Training and test rows [N, C] that the bundle was made from; in it are no test rows."""
    view = history.view
    if data is None:
        train = rows_in_bundle(view)
        return train, select(train, np.zeros(len(train), bool))
    require_made_from(view.bundle, data)
    return (
        rows_of_data(data.train, data, labels, total=view.labels.columns),
        rows_of_data(data.test, data, labels, total=view.labels.columns),
    )


def _pairs(split: Split) -> set[Pair]:
    """All pairs of a split that count."""
    entries = split.labels_of.tocoo()
    texts = split.instances.texts
    return {
        (texts[row], column)
        for row, column in zip(entries.row.tolist(), entries.col.tolist(), strict=True)
    }


def _of(live: dict[Pair, float], queries: set[str], inside: bool) -> dict[Pair, float]:
    """The pairs whose query is among `queries`, or those whose query is not."""
    return {pair: weight for pair, weight in live.items() if (pair[0] in queries) is inside}


def _test_rows(
    train: Split, old: set[str], history: History, options: LearnedOptions, *, carried: bool
) -> NDArray[np.bool_]:
    """Which of the rows [N] belong to the test split; `old` are the queries before the log."""
    texts = train.instances.texts
    if options.recent_is_test:
        recent = history.counts.recent - old
        return np.array([text in recent for text in texts], bool)
    if carried:
        return np.zeros(len(texts), bool)
    fraction, seed = options.test_fraction, options.seed
    return np.array([is_test(text, fraction=fraction, seed=seed) for text in texts], bool)


def _kept_labels(
    labels: Sequence[Label], history: History, options: LearnedOptions, splits: Sequence[Split]
) -> list[Label]:
    """All labels; of those that were posted before `since`, only those of a row."""
    used = {column for split in splits for column in split.labels_of.indices.tolist()}
    return [
        label
        for label in labels
        if options.everything
        or not label.novel
        or label.id in history.counts.posted
        or label.index in used
    ]
