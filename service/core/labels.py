"""The label table of one memory view: the bundle's labels, and over them what came live.

The table is persistent: `put` returns a new table that shares all but a few nodes with the old
one, so every view keeps its own labels at little cost.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property

from rpds import HashTrieMap, HashTrieSet

from service.core.errors import UnknownLabel
from service.core.texts import TextStore
from service.core.types import Label


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """Labels by id and by column of V; columns beyond the bundle's belong to new ids."""

    base_ids: TextStore
    base_texts: TextStore
    live: HashTrieMap[int, Label] = field(default_factory=HashTrieMap)
    new_columns: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    deleted: HashTrieSet[int] = field(default_factory=HashTrieSet)

    @property
    def columns(self) -> int:
        """How many columns V has, deleted labels included."""
        return len(self.base_ids) + len(self.new_columns)

    def column(self, label_id: str) -> int | None:
        """The column of a label id, also of a deleted one; None if it was never seen."""
        column = self.new_columns.get(label_id)
        return self.base_ids.find(label_id) if column is None else column

    def get(self, label_id: str) -> Label | None:
        """The label of this id, None if there is none (any more)."""
        column = self.column(label_id)
        return None if column is None or column in self.deleted else self.at(column)

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
        return Label(index=column, id=self.base_ids[column], text=self.base_texts[column])

    def id_at(self, column: int) -> str:
        """The id of a column."""
        label = self.live.get(column)
        return self.base_ids[column] if label is None else label.id

    def put(self, label: Label) -> LabelTable:
        """A table that holds `label` at its column."""
        known = label.index < len(self.base_ids) or label.id in self.new_columns
        return replace(
            self,
            live=self.live.insert(label.index, label),
            new_columns=(
                self.new_columns if known else self.new_columns.insert(label.id, label.index)
            ),
            deleted=self.deleted.discard(label.index),
        )

    def page(self, *, after: str, size: int) -> list[Label]:
        """The first `size` live labels whose ids come after `after`, in order of their ids."""
        start = bisect_right(self._live_ids, after)
        return [self.require(label_id) for label_id in self._live_ids[start : start + size]]

    @cached_property
    def _live_ids(self) -> list[str]:
        """Sorted once a table."""
        return sorted(label.id for label in self.live.values() if label.index not in self.deleted)
