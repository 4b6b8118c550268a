"""The label table of one view: the bundle's labels, and the labels posted since.

The table is persistent: `put` and `delete` return a new table that shares all but a few nodes with
the old one, so each view keeps its own labels at little cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from rpds import HashTrieMap

from service.core.bundle.label_details import LabelDetails
from service.core.errors import UnknownLabel, echoed
from service.core.files.text_store import TextStore
from service.core.memory.memory_size import bytes_of_label
from service.core.types import Bools, Indices, Label, NewLabel

_DELETED = -1
_NO_COLUMNS: Indices = np.zeros(0, np.int32)


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """Labels by id and by column of V; a label that is not in the bundle gets the next column.

    A deleted label's column is never used again: if its id is posted once more, it gets a new
    column, so that old votes cannot come back. `deleted` holds the columns of deleted labels,
    ascending. `live` holds the labels posted since the bundle by column, `column_by_id` their
    columns by id, and `live_bytes` estimates what they take of main memory beside their rows.
    """

    base_ids: TextStore
    base_texts: TextStore
    base_details: LabelDetails
    columns: int
    live: HashTrieMap[int, Label] = field(default_factory=HashTrieMap)
    column_by_id: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    deleted: Indices = field(default_factory=_NO_COLUMNS.copy)
    live_bytes: int = 0

    def __len__(self) -> int:
        """Return the number of labels."""
        return self.columns - len(self.deleted)

    def column(self, label_id: str) -> int | None:
        """Return the column of a label id, None if no label has it or the label was deleted."""
        column = self.column_by_id.get(label_id)
        if column is None:
            return self.base_ids.find(label_id)
        return None if column == _DELETED else column

    def get(self, label_id: str) -> Label | None:
        """Return the label with this id, None if there is none or it was deleted."""
        column = self.column(label_id)
        return None if column is None else self.at(column)

    def require(self, label_id: str) -> Label:
        """Return the label with this id; raises `UnknownLabel` if there is none."""
        label = self.get(label_id)
        if label is None:
            raise UnknownLabel(f"no label has the id {echoed(label_id)}", field="id")
        return label

    def as_posted(self, label_id: str) -> NewLabel | None:
        """Return the label as a client would have to post it, None if there is none."""
        label = self.get(label_id)
        if label is None:
            return None
        return NewLabel(
            id=label.id, text=label.text, queries=label.queries, metadata=label.metadata
        )

    def at(self, column: int) -> Label:
        """Return the label of a column."""
        label = self.live.get(column)
        if label is not None:
            return label
        details = self.base_details.at(column)
        return Label(
            index=column,
            id=self.base_ids[column],
            text=self.base_texts[column],
            queries=details.queries,
            metadata=details.metadata,
            novel=details.novel,
            version=details.version,
        )

    def shown_at(self, column: int) -> tuple[str, str, bool, Mapping[str, str]]:
        """Return id, text, `novel` and metadata of a column's label: what an answer shows.

        An answer has several labels, and a `Label` with everything else takes twice as long.
        """
        label = self.live.get(column)
        if label is not None:
            return label.id, label.text, label.novel, label.metadata
        details = self.base_details.at(column)
        return self.base_ids[column], self.base_texts[column], details.novel, details.metadata

    def text_at(self, column: int) -> str:
        """Return the text of a column's label."""
        label = self.live.get(column)
        return self.base_texts[column] if label is None else label.text

    def id_at(self, column: int) -> str:
        """Return the label id of a column."""
        label = self.live.get(column)
        return self.base_ids[column] if label is None else label.id

    def put(self, label: Label) -> LabelTable:
        """Return a table that holds `label` at its column, a present one or the next."""
        return replace(
            self,
            columns=max(self.columns, label.index + 1),
            live=self.live.insert(label.index, label),
            column_by_id=self.column_by_id.insert(label.id, label.index),
            live_bytes=self.live_bytes + bytes_of_label(label) - self._bytes_at(label.index),
        )

    def delete(self, label: Label) -> LabelTable:
        """Return a table without `label`."""
        place = int(np.searchsorted(self.deleted, label.index))
        return replace(
            self,
            live=self.live.discard(label.index),
            column_by_id=self.column_by_id.insert(label.id, _DELETED),
            deleted=np.insert(self.deleted, place, label.index),
            live_bytes=self.live_bytes - self._bytes_at(label.index),
        )

    def is_deleted(self, columns: Indices) -> Bools:
        """Return which of `columns` [n] belong to deleted labels."""
        if not len(self.deleted):
            return np.zeros(len(columns), bool)
        places = np.searchsorted(self.deleted, columns)
        places[places == len(self.deleted)] = 0
        return np.asarray(self.deleted[places] == columns)

    def page(self, *, after: str, size: int) -> list[Label]:
        """Return the first `size` labels posted since the bundle with ids after `after`, by id."""
        start = bisect_right(self._live_ids, after)
        return [self.require(label_id) for label_id in self._live_ids[start : start + size]]

    def _bytes_at(self, column: int) -> int:
        label = self.live.get(column)
        return 0 if label is None else bytes_of_label(label)

    @cached_property
    def _live_ids(self) -> list[str]:
        """The ids of all labels posted since the bundle, sorted once per table."""
        return sorted(label.id for label in self.live.values())
