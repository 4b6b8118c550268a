"""The rows that a bundle was made from: those in it, or those of its data set.

Shapes: N rows, C columns of the memory, deleted labels included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle
from service.core.errors import InvalidInput
from service.core.memory.view import View
from service.core.types import Label
from training.datasets.dataset import Dataset, Split, Texts


def served_labels(view: View) -> list[Label]:
    """Return the labels that were not deleted, in the order of their columns."""
    columns = np.arange(view.labels.columns, dtype=np.int32)
    return [view.labels.at(column) for column in columns[~view.labels.is_deleted(columns)].tolist()]


def rows_in_bundle(view: View) -> Split:
    """The bundle's training rows [N, C] that still have a label; equal texts become one row.

    Rows that a snapshot has of posted clicks and labels are left out: they are in the log. Weights
    of the bundle's votes become relevance; without them every pair has relevance 1.
    """
    bundle = view.bundle
    alive = view.alive_rows()
    rows = np.setdiff1d(alive[alive < bundle.instances], _posted_rows(bundle))
    columns, counts, weights = view.weighted_votes(rows)
    ones = np.ones(len(columns), np.float32)
    place: dict[str, int] = {}
    row_of = [place.setdefault(bundle.instance_texts[row], len(place)) for row in rows.tolist()]
    positions = (np.repeat(np.array(row_of, np.int64), counts), columns)
    shape = (len(place), view.labels.columns)
    labels_of = csr_matrix((ones if weights is None else weights, positions), shape=shape)
    labels_of.sum_duplicates()
    if weights is None:
        labels_of.data[:] = 1.0
    texts = tuple(place)
    return Split(
        instances=Texts(uids=texts, texts=texts),
        labels_of=labels_of,
        filtered=csr_matrix(shape, dtype=np.bool_),
    )


def rows_of_data(split: Split, data: Dataset, labels: Sequence[Label], *, total: int) -> Split:
    """The rows of a split of `data` with the memory's columns, `total` in all, [N, C].

    `labels` are those that are served. Pairs of all others are left out; a label that was deleted
    and posted anew has none of its old pairs.
    """
    trained = {label.id: label.index for label in labels if not label.novel}
    column = np.array([trained.get(uid, -1) for uid in data.labels.uids], np.int64)  # [L]

    def renumbered(matrix: csr_matrix) -> csr_matrix:
        entries = matrix.tocoo()
        kept = column[entries.col] >= 0
        positions = (entries.row[kept], column[entries.col[kept]])
        shape = (len(split), total)
        return csr_matrix((entries.data[kept], positions), shape=shape, dtype=matrix.dtype)

    return Split(
        instances=split.instances,
        labels_of=renumbered(split.labels_of),
        filtered=renumbered(split.filtered),
        metadata_of=split.metadata_of,
    )


def require_made_from(bundle: Bundle, data: Dataset) -> None:
    """Raise `InvalidInput` unless the bundle's training rows and labels are those of `data`."""
    posted = set(_posted_rows(bundle).tolist())
    texts = (bundle.instance_texts[row] for row in range(bundle.instances) if row not in posted)
    labels = (
        bundle.label_ids[column]
        for column in range(bundle.labels)
        if not bundle.label_details.at(column).novel
    )
    for kind, known, names in (
        ("label", set(data.labels.uids), labels),
        ("query", set(data.train.instances.texts), texts),
    ):
        foreign = next((name for name in names if name not in known), None)
        if foreign is not None:
            raise InvalidInput(
                f"the bundle {bundle.manifest.name} has the {kind} {foreign[:80]!r}, which the data"
                f" set {data.name} does not have in train: give the data set that the bundle was"
                " made from, or leave --data out",
                field="data",
            )


def _posted_rows(bundle: Bundle) -> np.ndarray:
    """The rows that a snapshot has of posted clicks and of queries that were posted with labels."""
    return np.array([*bundle.clicks.tolist(), *_rows_of_labels(bundle)], np.int64)


def _rows_of_labels(bundle: Bundle) -> Iterator[int]:
    for column in range(bundle.labels):
        yield from bundle.label_details.at(column).rows
