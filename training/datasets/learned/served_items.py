"""The metadata of a learned data set: the items that are served, with the links of its rows.

What was posted has no links: neither a click nor a label says which items it was about.

Shapes: N rows, L labels, M items that are served, O items of the data set before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_matrix, vstack

from service.core.changes import DeleteItem, PutItem
from service.core.items.item_memory import ItemMemory
from service.core.types import Label
from training.datasets.dataset import Dataset, Split, Texts


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemWrites:
    """The newest write of each item in a log: its text, None for a deletion.

    A bundle without an item memory takes none of them, though another one did.
    """

    newest: dict[str, str | None] = field(default_factory=dict)

    def add(self, change: PutItem | DeleteItem) -> None:
        """Note a write; they come in the order of the log."""
        if isinstance(change, PutItem):
            self.newest[change.item.id] = change.item.text
        else:
            self.newest[change.id] = None

    def applied(self, items: Texts) -> Texts:
        """Return `items` after these writes: those that are new are at the end."""
        texts = {**dict(zip(items.uids, items.texts, strict=True)), **self.newest}
        kept = {item_id: text for item_id, text in texts.items() if text is not None}
        return Texts(uids=tuple(kept), texts=tuple(kept.values()))


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedItems:
    """The items of a learned data set, None for one without metadata.

    `data` is the data set that the bundle was made from, where it has metadata.
    """

    texts: Texts | None
    data: Dataset | None

    @classmethod
    def of(
        cls, memory: ItemMemory | None, data: Dataset | None, writes: ItemWrites
    ) -> LearnedItems:
        """The items of `memory`; where the bundle has none, those of `data` after the `writes`.

        An item that was deleted is gone with its links, and one whose text was replaced keeps them.
        """
        before = None if data is None else data.metadata
        linked = None if before is None else data
        if memory is None:
            texts = None if before is None else writes.applied(before)
            return cls(texts=texts, data=linked)
        items = memory.page(after="", size=len(memory))
        items.sort(key=lambda item: item.place)  # the data set's order, then that of the posts
        texts = Texts(
            uids=tuple(item.id for item in items), texts=tuple(item.text for item in items)
        )
        return cls(texts=texts, data=linked)

    def of_rows(self, split: Split) -> csr_matrix | None:
        """The items of a split's rows [N, M]; `split` has those of the data before, or none."""
        return None if self.texts is None else self._renumbered(split.metadata_of, len(split))

    def of_labels(self, labels: Sequence[Label]) -> csr_matrix | None:
        """The items of labels [L, M]: of those that the data before had, none for others."""
        if self.texts is None:
            return None
        if self.data is None or self.data.label_metadata is None:
            return self._renumbered(None, len(labels))
        before = self.data.label_metadata
        row_of = {uid: row for row, uid in enumerate(self.data.labels.uids)}
        without_items = len(row_of)  # the row that is added at the end
        rows = [without_items if label.novel else row_of[label.id] for label in labels]
        none = csr_matrix((1, before.shape[1]), dtype=before.dtype)
        linked = csr_matrix(vstack([before, none], format="csr")[rows])
        return self._renumbered(linked, len(labels))

    def _renumbered(self, links: csr_matrix | None, rows: int) -> csr_matrix:
        """Links to the items before [N, O] as links to those that are served [N, M]."""
        assert self.texts is not None
        shape = (rows, len(self.texts))
        if links is None:
            return csr_matrix(shape, dtype=np.float32)
        assert self.data is not None and self.data.metadata is not None
        place = {uid: column for column, uid in enumerate(self.texts.uids)}
        column = np.array([place.get(uid, -1) for uid in self.data.metadata.uids], np.int64)  # [O]
        entries = links.tocoo()
        kept = column[entries.col] >= 0
        positions = (entries.row[kept], column[entries.col[kept]])
        return csr_matrix((entries.data[kept], positions), shape=shape, dtype=np.float32)
