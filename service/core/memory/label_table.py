"""The label table of one memory view: the bundle's labels, and over them what came live.

The table is persistent: `put` and `delete` return a new table that shares all but a few nodes with
the old one, so every view keeps its own labels at little cost.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from rpds import HashTrieMap

from service.core.bundle.label_details import LabelDetails
from service.core.errors import UnknownLabel
from service.core.files.text_store import TextStore
from service.core.types import Bools, Indices, Label

_GONE = -1
_NO_COLUMNS: Indices = np.zeros(0, np.int32)


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """Labels by id and by column of V; columns beyond the bundle's belong to new ids.

    A deleted label's column is never used again: posted once more, its id gets a new one, so that
    old votes cannot come back. `deleted` holds such columns, ascending.
    """

    base_ids: TextStore
    base_texts: TextStore
    base_details: LabelDetails
    columns: int
    live: HashTrieMap[int, Label] = field(default_factory=HashTrieMap)
    placed: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    deleted: Indices = field(default_factory=_NO_COLUMNS.copy)

    def __len__(self) -> int:
        """How many labels there are."""
        return self.columns - len(self.deleted)

    def column(self, label_id: str) -> int | None:
        """The column of a label id; None if there is no such label (any more)."""
        column = self.placed.get(label_id)
        if column is None:
            return self.base_ids.find(label_id)
        return None if column == _GONE else column

    def get(self, label_id: str) -> Label | None:
        """The label of this id, None if there is none (any more)."""
        column = self.column(label_id)
        return None if column is None else self.at(column)

    def require(self, label_id: str) -> Label:
        """As `get`, but raises `UnknownLabel`."""
        label = self.get(label_id)
        if label is None:
            raise UnknownLabel(f"no label has the id {label_id!r}", field="id")
        return label

    def at(self, column: int) -> Label:
        """The label of a column."""
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

    def id_at(self, column: int) -> str:
        """The id of a column."""
        label = self.live.get(column)
        return self.base_ids[column] if label is None else label.id

    def put(self, label: Label) -> LabelTable:
        """A table that holds `label` at its column, an old one or the next."""
        return replace(
            self,
            columns=max(self.columns, label.index + 1),
            live=self.live.insert(label.index, label),
            placed=self.placed.insert(label.id, label.index),
        )

    def delete(self, label: Label) -> LabelTable:
        """A table without `label`."""
        place = int(np.searchsorted(self.deleted, label.index))
        return replace(
            self,
            live=self.live.discard(label.index),
            placed=self.placed.insert(label.id, _GONE),
            deleted=np.insert(self.deleted, place, label.index),
        )

    def is_deleted(self, columns: Indices) -> Bools:
        """Which of `columns` [n] belong to deleted labels."""
        if not len(self.deleted):
            return np.zeros(len(columns), bool)
        places = np.searchsorted(self.deleted, columns)
        places[places == len(self.deleted)] = 0
        return np.asarray(self.deleted[places] == columns)

    def page(self, *, after: str, size: int) -> list[Label]:
        """The first `size` live labels whose ids come after `after`, in order of their ids."""
        start = bisect_right(self._live_ids, after)
        return [self.require(label_id) for label_id in self._live_ids[start : start + size]]

    @cached_property
    def _live_ids(self) -> list[str]:
        """Sorted once a table."""
        return sorted(label.id for label in self.live.values())
