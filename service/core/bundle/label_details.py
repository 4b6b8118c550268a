"""Details of labels beyond id and text: their metadata, and more if they were posted.

A bundle with details stores one JSON document per label, or an empty text for a label that has
none: `{"aliases": [...], "queries": [...], "metadata": {...}, "novel": true, "version": 17, "rows":
[3, 4], "expires_at": 1796000000000000}`. `rows` are the instance rows of the label's aliases, and
then of its queries. They are deleted when the label is posted again. Dates are microseconds. What a
label does not have, such as aliases or a date, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from service.core.errors import BundleAltered
from service.core.files.text_store import TextStore
from service.core.label import LabelFacts, behind_metadata, facts_of, from_store, to_store


@dataclass(frozen=True, kw_only=True)
class Details(LabelFacts):
    """The details of one label; `Label` describes `novel` and `version`."""

    novel: bool = False
    version: int = 0
    rows: tuple[int, ...] = ()


_NONE = Details()


class LabelDetails:
    """The details of a bundle's labels, by column. `store` is None in a bundle without details."""

    def __init__(self, store: TextStore | None, *, aliased: bool = False) -> None:
        """Read details from `store`, which has one text per label; `aliased`: some have aliases."""
        self.store, self._aliased = store, aliased

    def at(self, column: int) -> Details:
        """Return the details of the label at `column`."""
        text = "" if self.store is None else self.store[column]
        return parse(text) if text else _NONE

    def aliases_at(self, column: int) -> tuple[str, ...]:
        """Return the aliases of the label at `column`; reads nothing if no label has any."""
        return self.at(column).aliases if self._aliased else ()

    def verify(self, *, instances: int) -> None:
        """Raise `BundleAltered` unless all details are readable and all rows below `instances`."""
        for column in self._filled():
            try:
                rows = self.at(column).rows
                fits = all(isinstance(row, int) and 0 <= row < instances for row in rows)
            except (TypeError, ValueError, KeyError) as error:
                raise BundleAltered(f"the details of label {column} are none: {error!r}") from error
            if not fits:
                raise BundleAltered(
                    f"the details of label {column} name rows beyond the {instances} instances"
                )

    def novel_columns(self) -> list[int]:
        """Return the columns of the labels that were not in the training data, ascending."""
        return [column for column in self._filled() if self.at(column).novel]

    def filled(self) -> Iterator[tuple[int, Details]]:
        """Yield the column and the details of each label that has some, ascending."""
        for column in self._filled():
            yield column, self.at(column)

    def _filled(self) -> list[int]:
        return [] if self.store is None else self.store.filled().tolist()


def dump(details: Details) -> str:
    """Return a label's details as text; empty for a label without details."""
    if details == _NONE:
        return ""
    own = {"novel": details.novel, "version": details.version, "rows": details.rows}
    return orjson.dumps(behind_metadata(to_store(facts_of(details)), own)).decode()


def parse(text: str) -> Details:
    """Return the details that `dump` wrote as `text`."""
    document: dict[str, Any] = orjson.loads(text)
    return Details(**from_store({**document, "rows": tuple(document["rows"])}))
