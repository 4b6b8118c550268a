"""Reads and writes folders in the LF-XMC layout, in its JSON and its sparse text form.

The files of a folder decide its form. If both forms are complete, JSON is read, since only it has
metadata. `json_text.py` and `sparse_text.py` describe their files. Both forms share five more:

    label_fields.json[.gz]    an object `{"uid": label, "fields": {...}}` for each label that has
                              typed fields (`label_fields.py`); optional
    label_aliases.json[.gz]   an object `{"uid": label, "aliases": [...]}` for each label that has
                              aliases, further texts of it; optional
    filter_labels_train.txt   a line `row label` for each pair that is removed before ranking;
    filter_labels_test.txt    optional
    dataset.json              the description, an object with these keys:
        format      "keymatch-dataset"
        version     1
        name        any text
        propensity  {"a": positive number, "b": positive number}
        fields      ["title"] or ["title", "content"]: the fields that a text is joined from
        source      any text; may be empty or absent
        learned     {"log": id, "version": number}: the events of a label log that the data holds,
                    which `data log` wrote; absent in other data sets

A public folder has no `dataset.json`. Then the defaults apply; no setting is guessed from the
folder's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np
import orjson
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle.manifest import LearnedFacts
from service.core.errors import InvalidData, echoed
from service.core.files.atomic import new_folder
from service.core.files.lines import find, json_rows, numbered_lines, write_lines
from service.core.label_filter import Metadata
from training.datasets.dataset import (
    DEFAULT_PROPENSITY,
    Dataset,
    Propensity,
    Split,
    Texts,
    check_fields,
    pairs_matrix,
)
from training.datasets.label_fields import checked_aliases, checked_fields
from training.datasets.lf_xmc import json_text, sparse_text
from training.datasets.lf_xmc.rows import Rows
from training.documents import checked, read_document, write_json

Layout = Literal["json", "sparse"]

LAYOUTS: dict[Layout, ModuleType] = {"json": json_text, "sparse": sparse_text}
TRAIN_FILTER, TEST_FILTER = "filter_labels_train.txt", "filter_labels_test.txt"
LABEL_FIELDS, LABEL_ALIASES = "label_fields.json", "label_aliases.json"
DESCRIPTION = "dataset.json"
FORMAT = "keymatch-dataset"
VERSION = 1


@checked_dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True))
class Description:
    """The content of `dataset.json`."""

    name: str
    propensity: Propensity
    fields: tuple[str, ...]
    source: str = ""
    learned: LearnedFacts | None = None

    def __post_init__(self) -> None:
        check_fields(self.fields)


def read(folder: Path | str) -> Dataset:
    """Read and validate a folder.

    Without a `dataset.json` it has a propensity of 0.55 and 1.5, texts of title and content, and
    the folder's name. Uids need to be unique only within a file.

    Raises:
        InvalidData: names file, line and field of the first mistake, or the missing files.
    """
    folder = Path(folder)
    layout = LAYOUTS[detect_layout(folder)]
    description = read_description(folder)
    labels, train, test, metadata = layout.read(folder, description.fields)
    of_labels = partial(_read_of_labels, folder, uids=labels.texts.uids)
    label_fields = of_labels(LABEL_FIELDS, _fields_of_row, missing={})
    aliases_of_row = partial(_aliases_of_row, labels.texts)
    label_aliases = of_labels(LABEL_ALIASES, aliases_of_row, missing=())

    def split(rows: Rows, filter_file: str) -> Split:
        shape = (len(rows.texts), len(labels.texts))
        return Split(
            instances=rows.texts,
            labels_of=rows.labels_of,
            filtered=pairs_matrix(_filtered(folder, filter_file, shape=shape), shape=shape),
            metadata_of=rows.metadata_of,
        )

    return Dataset(
        train=split(train, TRAIN_FILTER),
        test=split(test, TEST_FILTER),
        labels=labels.texts,
        label_metadata=labels.metadata_of,
        metadata=metadata,
        label_fields=label_fields,
        label_aliases=label_aliases,
        **vars(description),
    )


def write(dataset: Dataset, folder: Path | str, *, layout: Layout = "json") -> None:
    """Write a new folder from which `read` returns an equal data set; never a partial folder.

    Raises:
        InvalidData: the folder exists already or cannot be written.
        InvalidInput: the layout cannot store a part of the data set.
    """
    with new_folder(Path(folder)) as temporary:
        LAYOUTS[layout].write(dataset, temporary)
        for name, split in ((TRAIN_FILTER, dataset.train), (TEST_FILTER, dataset.test)):
            rows, labels = split.filtered.nonzero()
            order = np.lexsort((labels, rows))
            lines = (b"%d %d" % (rows[index], labels[index]) for index in order)
            write_lines(temporary / name, lines)
        for name, key, of_labels in (
            (LABEL_FIELDS, "fields", dataset.label_fields),
            (LABEL_ALIASES, "aliases", dataset.label_aliases),
        ):
            if of_labels is not None:
                rows = _lines_of_labels(dataset.labels.uids, key, of_labels)
                write_lines(temporary / f"{name}.gz", rows)
        write_json(temporary / DESCRIPTION, _description(dataset))


def detect_layout(folder: Path) -> Layout:
    """Return the form whose files all exist; raises `InvalidData` that names missing files."""
    if not folder.is_dir():
        raise InvalidData(folder, "is not a folder")
    missing = {
        layout: [name for name in module.REQUIRED if find(folder, name) is None]
        for layout, module in LAYOUTS.items()
    }
    for layout, names in missing.items():
        if not names:
            return layout
    # For a folder with some files of one form, only the missing files of that form are named.
    begun = [layout for layout in LAYOUTS if len(missing[layout]) < len(LAYOUTS[layout].REQUIRED)]
    wanted = " or ".join(", ".join(missing[layout]) for layout in begun or LAYOUTS)
    raise InvalidData(folder, f"is not a data set: missing {wanted} (each may end in .gz)")


def read_description(folder: Path) -> Description:
    """Read the description of `folder`; without a file, return defaults and the folder's name."""
    path = folder / DESCRIPTION
    if not path.exists():
        name = folder.resolve().name
        return Description(name=name, propensity=DEFAULT_PROPENSITY, fields=("title", "content"))
    document = read_document(path, format_name=FORMAT, version=VERSION)
    return checked(Description, document, path=path, writer="data pairs")


def _description(dataset: Dataset) -> dict[str, Any]:
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": dataset.name,
        "propensity": asdict(dataset.propensity),
        "fields": list(dataset.fields),
        "source": dataset.source,
    }
    if dataset.learned is not None:
        content["learned"] = asdict(dataset.learned)
    return content


OfLabel = TypeVar("OfLabel", Metadata, tuple[str, ...])
Parse = Callable[[int, Path, int, Mapping[str, Any]], OfLabel]  # of a column, path, line, and row


def _read_of_labels(
    folder: Path, name: str, parse: Parse[OfLabel], *, uids: Sequence[str], missing: OfLabel
) -> tuple[OfLabel, ...] | None:
    """Return what a file has for each label [L], or `missing`; None without the file.

    Raises `InvalidData` for a bad line.
    """
    path = find(folder, name)
    if path is None:
        return None
    place = {uid: column for column, uid in enumerate(uids)}
    found: dict[int, OfLabel] = {}
    for line, row in json_rows(path):
        uid = row.get("uid")
        column = place.get(uid) if isinstance(uid, str) else None
        if column is None or column in found:
            why = "is repeated" if column is not None else f"{echoed(str(uid))} is no label's uid"
            raise InvalidData(path, why, line=line, field="uid")
        found[column] = parse(column, path, line, row)
    return tuple(found.get(column, missing) for column in range(len(uids)))


def _fields_of_row(column: int, path: Path, line: int, row: Mapping[str, Any]) -> Metadata:
    values = row.get("fields")
    if not isinstance(values, dict):
        raise InvalidData(path, "must be an object", line=line, field="fields")
    return checked_fields(values, path=path, line=line)


def _aliases_of_row(
    labels: Texts, column: int, path: Path, line: int, row: Mapping[str, Any]
) -> tuple[str, ...]:
    try:
        return checked_aliases(labels.texts[column], row.get("aliases"))
    except ValueError as error:
        raise InvalidData(path, str(error), line=line, field="aliases") from error


def _lines_of_labels(
    uids: Sequence[str], key: str, of_labels: Sequence[Metadata | tuple[str, ...]]
) -> Iterator[bytes]:
    """Yield the line of each label that has something."""
    for uid, values in zip(uids, of_labels, strict=True):
        if values:
            yield orjson.dumps({"uid": uid, key: values})


def _filtered(folder: Path, name: str, *, shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a filter file, which may be missing; `InvalidData` for a bad line."""
    path = find(folder, name)
    if path is None:
        return
    for line, text in numbered_lines(path):
        words = text.split()
        # A longer number is out of range anyway, and int() would be slow or refuse it.
        if len(words) != 2 or not all(
            word.isascii() and word.isdigit() and len(word) <= 18 for word in words
        ):
            raise InvalidData(path, f"expected `row label`, not {text[:80]!r}", line=line)
        row, label = int(words[0]), int(words[1])
        for field, value, limit in (("row", row, shape[0]), ("label", label, shape[1])):
            if value >= limit:
                message = f"{value} is out of range: it must be below {limit}"
                raise InvalidData(path, message, line=line, field=field)
        yield row, label
