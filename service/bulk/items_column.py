"""The column of a table with the items that each row's query attends to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from service.core.errors import InvalidConfig, InvalidInput, echoed
from service.core.items.item_memory import ItemMemory
from service.core.items.named_items import places_of
from service.core.tables import text_cells
from service.settings import Limits


@dataclass(frozen=True, kw_only=True)
class ItemsColumn:
    """Where a row names its items, by id or text, under the limits of `POST /predict`.

    `delimiter` parts the items of a cell. `memory` has the items that are known; without one, names
    are not looked up.
    """

    name: str
    limits: Limits
    delimiter: str = "|"
    memory: ItemMemory | None = None

    def __post_init__(self) -> None:
        if not self.delimiter:
            raise InvalidConfig("--items-delimiter must be one character or more")

    def known_by(self, memory: ItemMemory) -> ItemsColumn:
        """The same column, whose names must be those of items in `memory`."""
        return replace(self, memory=memory)

    def items_of(self, cell: Any) -> tuple[str, ...] | None:
        """The names in a cell; None for an empty one, whose query attends to predicted items.

        A list without items means none at all. Raises `ValueError`, with what is wrong.
        """
        names = text_cells.items(cell, delimiter=self.delimiter)
        if not names and not isinstance(cell, list):
            return None
        if len(names) > self.limits.items:
            raise ValueError(f"names {len(names):,} items; at most {self.limits.items} are allowed")
        for name in names:
            if len(name) > self.limits.query_characters:
                raise ValueError(
                    f"the item {echoed(name)} has {len(name):,} characters; at most"
                    f" {self.limits.query_characters:,} are allowed"
                )
        if self.memory is not None:
            try:
                places_of(self.memory, names)
            except InvalidInput as error:
                raise ValueError(str(error)) from error
        return names
