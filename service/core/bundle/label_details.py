"""What a bundle knows of labels that were once posted live, beyond id and text.

A snapshot writes it, so that a label keeps its known queries, metadata and version when the bundle
that it came into is served. One JSON document a label, empty where there is nothing to say:
`{"queries": [...], "metadata": {...}, "novel": true, "version": 17, "rows": [3, 4]}`; `rows` are
the instance rows of its queries, which its next form replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from service.core.files.text_store import TextStore


@dataclass(frozen=True, kw_only=True)
class Details:
    """What one label has beyond id and text; see `Label`."""

    queries: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    novel: bool = False
    version: int = 0
    rows: tuple[int, ...] = ()


_NONE = Details()


class LabelDetails:
    """Details by column; `store` is None for a bundle that holds none."""

    def __init__(self, store: TextStore | None) -> None:
        """Read details from `store`, one text a label."""
        self._store = store

    def at(self, column: int) -> Details:
        """The details of a column."""
        text = self._store[column] if self._store is not None else ""
        return parse(text) if text else _NONE


def dump(details: Details) -> str:
    """The text of a label's details, empty for a label that has none."""
    if details == _NONE:
        return ""
    return orjson.dumps(details).decode()


def parse(text: str) -> Details:
    """The details that `dump` wrote."""
    document: dict[str, Any] = orjson.loads(text)
    return Details(
        **{
            **document,
            "queries": tuple(document["queries"]),
            "rows": tuple(document["rows"]),
        }
    )
