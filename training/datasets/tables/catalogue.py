"""Reads a catalogue: a table of labels with their ids, texts, aliases and fields.

It gives a data set labels that no row of a log names, and all labels their ids, aliases and fields.

Shapes: C labels of the catalogue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from service.core.errors import InvalidData, echoed
from service.core.label_filter import Metadata
from service.core.tables.columns import (
    ending_of,
    items_cell,
    label_id_cell,
    read_columns,
    text_cell,
)
from service.core.text_identity import free_id, identity
from training.datasets.dataset import Texts
from training.datasets.label_fields import (
    checked_aliases,
    checked_fields,
    require_postable,
    require_postable_aliases,
)
from training.datasets.tables.typed_columns import FieldType, typed_column


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalogue:
    """The labels of a catalogue. `fields` and `aliases` are None if no column was named for them.

    `notes` are sentences about the types of fields. Without a column of ids (`has_ids`), a label's
    id is the identity of its text.
    """

    labels: Texts  # C
    fields: tuple[Metadata, ...] | None = None  # C
    aliases: tuple[tuple[str, ...], ...] | None = None  # C
    has_ids: bool = False
    notes: tuple[str, ...] = ()

    def id_of(self, named: str) -> str:
        """Return the id of the label that has this id, or otherwise this text.

        A text that no label has becomes an id by the service's rule, `free_id`. Raises `ValueError`
        for a text that several labels have.
        """
        if named in self._ids:
            return named
        known = identity(named)
        ids = self._ids_of_text.get(known, ())
        if not ids:
            return free_id(known, taken=self._ids.__contains__)
        if len(ids) > 1:
            raise ValueError(
                f"{echoed(named)} is the text of {len(ids)} labels of the catalogue; name a column"
                " of ids with --label-id"
            )
        return ids[0]

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(self.labels.uids)

    @cached_property
    def _ids_of_text(self) -> dict[str, list[str]]:
        ids_of: defaultdict[str, list[str]] = defaultdict(list)
        for uid, text in zip(self.labels.uids, self.labels.texts, strict=True):
            ids_of[identity(text)].append(uid)
        return dict(ids_of)


NO_TYPES: Mapping[str, FieldType] = MappingProxyType({})
NO_CATALOGUE = Catalogue(labels=Texts(uids=(), texts=()))


UnknownLabel = Literal["keep", "drop", "refuse"]  # what becomes of a row that names one
Cell = TypeVar("Cell")


class _Label(NamedTuple):
    """A label, and the line that it was read from."""

    line: int
    text: str
    fields: Metadata


def read_catalogue(
    path: Path,
    *,
    text: str,
    label_id: str | None = None,
    fields: Sequence[str] = (),
    types: Mapping[str, FieldType] = NO_TYPES,
    aliases: Sequence[str] = (),
    delimiter: str = "|",
) -> Catalogue:
    """Read a table in one of the formats of `core.tables`; the arguments are names of columns.

    Empty cells are absent fields and aliases. A field has the type in `types`, or else the one that
    its column's cells have (`typed_columns`). `delimiter` separates the aliases in a cell. A label
    may be repeated, also with another spelling of its text; it has the aliases of all its rows.

    Raises:
        InvalidData: with file, line and column, for a bad row and for a label with different texts
            or fields; also for a table without rows, and for fields or aliases that are empty in
            all rows.
    """
    given = (text, label_id, *fields, *aliases)
    names = list(dict.fromkeys(name for name in given if name is not None))
    rows = list(read_columns(path, names, extra="training"))
    cells = [dict(zip(names, values, strict=True)) for _, values in rows]
    are_texts = ending_of(path) in (".csv", ".tsv")
    typed = {}
    for name in fields:
        column = [(line, own[name]) for (line, _), own in zip(rows, cells, strict=True)]
        given_type = types.get(name)
        typed[name] = typed_column(column, name, path, given=given_type, are_texts=are_texts)
    labels: dict[str, _Label] = {}
    aliases_of: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    split = partial(items_cell, delimiter=delimiter)
    for place, (line, _) in enumerate(rows):
        own = cells[place]
        values = {name: column.values[place] for name, column in typed.items()}
        filled = {name: value for name, value in values.items() if value is not None}
        of_label = checked_fields(filled, path=path, line=line)
        require_postable(of_label, path=path, line=line)
        read = _Label(line=line, text=_cell(own, text, text_cell, path, line), fields=of_label)
        uid = identity(read.text)
        if label_id is not None:
            uid = _cell(own, label_id, label_id_cell, path, line)
        _require_equal(labels.setdefault(uid, read), read, uid, path, column=label_id or text)
        for name in aliases:
            found = _cell(own, name, split, path, line)
            try:
                aliases_of[uid] = checked_aliases(labels[uid].text, (*aliases_of[uid], *found))
                require_postable_aliases(aliases_of[uid])
            except ValueError as error:
                raise InvalidData(path, str(error), line=line, field=name) from error
    if not labels:
        raise InvalidData(path, "holds no rows")
    if fields and not any(label.fields for label in labels.values()):
        raise InvalidData(path, f"has no value in any row of {', '.join(fields)}")
    if aliases and not any(aliases_of.values()):
        raise InvalidData(path, f"has no alias in any row of {', '.join(aliases)}")
    return Catalogue(
        labels=Texts(uids=tuple(labels), texts=tuple(label.text for label in labels.values())),
        fields=tuple(label.fields for label in labels.values()) if fields else None,
        aliases=tuple(aliases_of[uid] for uid in labels) if aliases else None,
        has_ids=label_id is not None,
        notes=tuple(note for column in typed.values() for note in column.notes),
    )


def _cell(
    row: Mapping[str, Any], column: str, parse: Callable[[Any], Cell], path: Path, line: int
) -> Cell:
    try:
        return parse(row[column])
    except ValueError as error:
        raise InvalidData(path, str(error), line=line, field=column) from error


def _require_equal(earlier: _Label, read: _Label, uid: str, path: Path, *, column: str) -> None:
    """Raise `InvalidData` if a row has another text or other fields than the label's first row."""
    if identity(earlier.text) != identity(read.text):
        message = f"{echoed(uid)} has the text {echoed(read.text)}, but {echoed(earlier.text)}"
    elif earlier.fields != read.fields:
        message = f"{echoed(uid)} has other fields than"
    else:
        return
    raise InvalidData(path, f"{message} in line {earlier.line}", line=read.line, field=column)
