"""Details of labels that were posted while the service ran: what they have beyond id and text.

A snapshot stores them, so that such a label keeps its queries, metadata and version when the
snapshot is served. The format is one JSON document per label, or an empty text without details:
`{"queries": [...], "metadata": {...}, "novel": true, "version": 17, "rows": [3, 4]}`. `rows` are
the instance rows of the label's queries, which are deleted when the label is posted again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from service.core.files.text_store import TextStore


@dataclass(frozen=True, kw_only=True)
class Details:
    """Details of one label; the fields but `rows` are those of `Label`."""

    queries: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    novel: bool = False
    version: int = 0
    rows: tuple[int, ...] = ()


_NONE = Details()


class LabelDetails:
    """The details of a bundle's labels by column; `store` is None in a bundle without details."""

    def __init__(self, store: TextStore | None) -> None:
        """Read details from `store`, which has one text per label."""
        self._store = store

    def at(self, column: int) -> Details:
        """Return the details of the label at `column`."""
        text = self._store[column] if self._store is not None else ""
        return parse(text) if text else _NONE

    def novel_columns(self) -> list[int]:
        """The columns of the labels that were not in the training data, ascending."""
        filled = [] if self._store is None else self._store.filled().tolist()
        return [column for column in filled if self.at(column).novel]


def dump(details: Details) -> str:
    """Return the text of a label's details, empty for a label without any."""
    if details == _NONE:
        return ""
    return orjson.dumps(details).decode()


def parse(text: str) -> Details:
    """Return the details from a text that `dump` returned."""
    document: dict[str, Any] = orjson.loads(text)
    return Details(
        **{
            **document,
            "queries": tuple(document["queries"]),
            "rows": tuple(document["rows"]),
        }
    )
