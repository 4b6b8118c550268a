"""Rows and metadata that a learned data set takes from the bundle or from the bundle's data set.

Posted clicks and labels get no metadata items, since the log does not say which ones they have.

Shapes: N rows, C label columns of the memory (deleted labels included), L labels, M served items,
O items of the earlier data set, from which the bundle was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from service.core.bundle.bundle import Bundle
from service.core.errors import InvalidInput
from service.core.files.arrays import is_constant
from service.core.items.item_memory import ItemMemory
from service.core.memory.view import View
from service.core.types import Label
from training.datasets.dataset import Dataset, Split, Texts


def served_labels(view: View) -> list[Label]:
    """Return the labels that were not deleted, in the order of their columns."""
    columns = np.arange(view.labels.columns, dtype=np.int32)
    return [view.labels.at(column) for column in columns[~view.labels.is_deleted(columns)].tolist()]


def rows_in_bundle(view: View) -> Split:
    """Return the bundle's training rows [N, C] that still have a label; equal texts are one row.

    A snapshot's rows of posted clicks and labels are left out, since the log has them too. The
    bundle's vote weights become relevance; without weights every pair has relevance 1. A row that
    lost votes by unlearning has those that are left.
    """
    bundle = view.bundle
    rows = view.alive_rows()
    origins = view.origins(rows)
    trained = (origins >= 0) & (origins < bundle.instances)
    trained &= ~np.isin(origins, _posted_rows(bundle))
    order = np.argsort(origins[trained])
    rows, origins = rows[trained][order], origins[trained][order]
    columns, counts, weights = view.weighted_votes(rows)
    place: dict[str, int] = {}
    row_of = [place.setdefault(bundle.instance_texts[row], len(place)) for row in origins.tolist()]
    positions = (np.repeat(np.array(row_of, np.int64), counts), columns)
    shape = (len(place), view.labels.columns)
    labels_of = csr_matrix((weights, positions), shape=shape)
    labels_of.sum_duplicates()
    if is_constant(bundle.vote_weights):
        labels_of.data[:] = 1.0
    return Split(
        instances=Texts.named_by_text(place),
        labels_of=labels_of,
        filtered=csr_matrix(shape, dtype=np.bool_),
    )


def rows_of_data(split: Split, data: Dataset, labels: Sequence[Label], *, total: int) -> Split:
    """Return the rows [N, C] of a split of `data`, with the memory's `total` label columns.

    Only pairs of the served `labels` are kept. A label that was deleted and posted again loses its
    old pairs.
    """
    place, uids = {label.id: label.index for label in labels if not label.novel}, data.labels.uids
    return replace(
        split,
        labels_of=renumbered(split.labels_of, place, uids=uids, columns=total),
        filtered=renumbered(split.filtered, place, uids=uids, columns=total),
    )


def renumbered(
    matrix: csr_matrix, place: Mapping[str, int], *, uids: Sequence[str], columns: int
) -> csr_matrix:
    """Move each column of a matrix to the `place` of its uid; columns without one are dropped."""
    column = np.array([place.get(uid, -1) for uid in uids], np.int64)
    entries = matrix.tocoo()
    kept = column[entries.col] >= 0
    positions = (entries.row[kept], column[entries.col[kept]])
    shape = (matrix.shape[0], columns)
    return csr_matrix((entries.data[kept], positions), shape=shape, dtype=matrix.dtype)


def require_made_from(bundle: Bundle, data: Dataset) -> None:
    """Raise `InvalidInput` unless the bundle was made from `data`."""
    if bundle.manifest.data != data.digest():
        raise InvalidInput(
            f"the bundle {bundle.manifest.name} was made from the data set"
            f" {bundle.manifest.dataset!r} with other rows than those of {data.name!r}: give the"
            " data set that the bundle was made from, or leave --data out",
            field="data",
        )


def _posted_rows(bundle: Bundle) -> np.ndarray:
    """Return a snapshot's rows that come from posted clicks or from posted labels' queries."""
    details = map(bundle.label_details.at, range(bundle.labels))
    of_labels = [row for detail in details for row in detail.rows]
    return np.array([*bundle.clicks.tolist(), *of_labels], np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedItems:
    """The metadata items of a learned data set; `texts` is None if it has no metadata.

    `data` is the data set that the bundle was made from; None if that has no metadata.
    """

    texts: Texts | None
    data: Dataset | None

    @classmethod
    def of(
        cls, memory: ItemMemory | None, data: Dataset | None, writes: Mapping[str, str | None]
    ) -> LearnedItems:
        """Return the items of `memory`; if that is None, those of `data` with `writes` applied.

        `writes` maps each item in the log to its newest text, None if it was deleted. A deleted
        item loses its links to rows; an item whose text was replaced keeps them.
        """
        before = None if data is None else data.metadata
        linked = None if before is None else data
        if memory is not None:
            # The data set's items come first, then posted items in the order of their posts.
            items = sorted(memory.page(size=len(memory)), key=lambda item: item.place)
            kept = {item.id: item.text for item in items}
        elif before is not None:
            known = {**dict(zip(before.uids, before.texts, strict=True)), **writes}
            kept = {uid: text for uid, text in known.items() if text is not None}
        else:
            return cls(texts=None, data=None)
        return cls(texts=Texts(uids=tuple(kept), texts=tuple(kept.values())), data=linked)

    def of_rows(self, split: Split) -> csr_matrix | None:
        """Return a split's links to the served items [N, M]; `split` links to the earlier items."""
        return None if self.texts is None else self._served(split.metadata_of, len(split))

    def of_labels(self, labels: Sequence[Label]) -> csr_matrix | None:
        """Return the items of labels [L, M]; labels that the earlier data did not have get none."""
        if self.texts is None:
            return None
        if self.data is None or self.data.label_metadata is None:
            return self._served(None, len(labels))
        place = {label.id: row for row, label in enumerate(labels) if not label.novel}
        items_of = self.data.label_metadata.T  # a column for each label
        links = renumbered(items_of, place, uids=self.data.labels.uids, columns=len(labels)).T
        return self._served(links, len(labels))

    def _served(self, links: csr_matrix | None, rows: int) -> csr_matrix:
        """Turn links to the earlier items [N, O] into links to the served items [N, M]."""
        assert self.texts is not None
        if links is None:
            return csr_matrix((rows, len(self.texts)), dtype=np.float32)
        assert self.data is not None and self.data.metadata is not None
        place = {uid: column for column, uid in enumerate(self.texts.uids)}
        return renumbered(links, place, uids=self.data.metadata.uids, columns=len(place))
