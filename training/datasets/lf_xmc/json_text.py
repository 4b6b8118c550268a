"""The JSON form of the LF-XMC layout: one object on each line, gzip or plain.

    metadata.json[.gz]  uid, title                                         optional
    lbl.json[.gz]       uid, title, content?, metadata_ind?
    trn.json[.gz]       uid, title, content?, target_ind?, target_rel?, metadata_ind?
    tst.json[.gz]       the same

Fields with `?` may be absent: no content, no labels, relevance 1, no metadata. Labels are read
first, so an error about an index that is out of range can name its line. Without a metadata file
`metadata_ind` is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from service.core.files.lines import find, json_rows, write_lines
from training.datasets.dataset import Dataset, Texts
from training.datasets.lf_xmc.rows import Rows, SparseRows, TextRows, is_relevance

TEST = "tst.json"  # the only file that may be empty: a data set may have no test rows
REQUIRED = ("trn.json", TEST, "lbl.json")
METADATA = "metadata.json"


def read(folder: Path, fields: tuple[str, ...]) -> tuple[Rows, Rows, Rows, Texts | None]:
    """Return labels, train and test rows and metadata items of a folder with all `REQUIRED` files.

    Raises `InvalidData` with file, line and field.
    """
    metadata_file = find(folder, METADATA)
    metadata = read_rows(metadata_file, fields=fields).texts if metadata_file else None
    items = len(metadata) if metadata is not None else None

    def rows(name: str, labels: int | None = None) -> Rows:
        path = find(folder, name) or folder / name
        return read_rows(path, fields=fields, labels=labels, metadata=items)

    labels = rows("lbl.json")
    return labels, rows("trn.json", len(labels.texts)), rows(TEST, len(labels.texts)), metadata


def read_rows(
    path: Path, *, fields: tuple[str, ...], labels: int | None = None, metadata: int | None = None
) -> Rows:
    """Read one file; its indices must be below the counts `labels` and `metadata`."""
    texts, targets, items = TextRows(path), SparseRows(), SparseRows()
    for line, row in json_rows(path):
        where = _Where(path, line)
        uid = _string(row, "uid", where)
        texts.append(uid=uid, text=_text(row, fields, where), line=line)
        if labels is not None:
            indices = _indices(row, "target_ind", labels, where)
            targets.append(indices, _relevances(row, len(indices), where))
        if metadata is not None:
            items.append(_indices(row, "metadata_ind", metadata, where))
    return Rows(
        texts.texts(may_be_empty=path.name.startswith(TEST)),
        targets.matrix(labels) if labels is not None else None,
        items.matrix(metadata) if metadata is not None else None,
    )


def write(dataset: Dataset, folder: Path) -> None:
    """Write files that `read` reads back equal; the whole text of a row becomes its title."""
    if dataset.metadata is not None:
        write_lines(folder / f"{METADATA}.gz", row_lines(dataset.metadata))
    labels = row_lines(dataset.labels, metadata=dataset.label_metadata)
    write_lines(folder / "lbl.json.gz", labels)
    for name, split in (("trn.json", dataset.train), (TEST, dataset.test)):
        rows = row_lines(split.instances, targets=split.labels_of, metadata=split.metadata_of)
        write_lines(folder / f"{name}.gz", rows)


def row_lines(
    texts: Texts, *, targets: csr_matrix | None = None, metadata: csr_matrix | None = None
) -> Iterator[bytes]:
    """Yield one JSON object for each row of `texts`."""
    for index, (uid, text) in enumerate(zip(texts.uids, texts.texts, strict=True)):
        row: dict[str, Any] = {"uid": uid, "title": text, "content": ""}
        if targets is not None:
            entries = slice(targets.indptr[index], targets.indptr[index + 1])
            row["target_ind"] = targets.indices[entries]
            # A float32 is written in its shortest form, 0.1; a double would be 0.10000000149.
            row["target_rel"] = targets.data[entries].astype(np.float32, copy=False)
        if metadata is not None:
            entries = slice(metadata.indptr[index], metadata.indptr[index + 1])
            row["metadata_ind"] = metadata.indices[entries]
        yield orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)


class _Where(NamedTuple):
    path: Path
    line: int

    def error(self, field: str, message: str) -> InvalidData:
        return InvalidData(self.path, message, line=self.line, field=field)


def _string(row: dict[str, Any], field: str, where: _Where) -> str:
    if field not in row:
        raise where.error(field, "is missing")
    value = row[field]
    if not isinstance(value, str):
        raise where.error(field, f"must be a text, not {type(value).__name__}")
    return value


def _text(row: dict[str, Any], fields: tuple[str, ...], where: _Where) -> str:
    """Join the title and, if `fields` names it, the content by a space; blank parts are omitted."""
    title = _string(row, "title", where)
    content = _string(row, "content", where) if "content" in row else ""
    parts = (title, content) if "content" in fields else (title,)
    return " ".join(part for part in parts if part.strip())


def _indices(row: dict[str, Any], field: str, limit: int, where: _Where) -> list[int]:
    values = row.get(field, [])
    # Compare types exactly: isinstance(True, int) holds, so `true` would pass as index 1.
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise where.error(field, "must be a list of integers")
    if values and not (min(values) >= 0 and max(values) < limit):
        wrong = next(value for value in values if not 0 <= value < limit)
        raise where.error(field, f"{wrong} is out of range: it must be below {limit}")
    if len(set(values)) != len(values):
        raise where.error(field, "an index is repeated")
    return values


def _relevances(row: dict[str, Any], count: int, where: _Where) -> list[float] | None:
    if "target_rel" not in row:
        return None
    values = row["target_rel"]
    if not isinstance(values, list) or len(values) != count:
        raise where.error("target_rel", f"must be a list as long as target_ind, {count}")
    for value in values:
        if not is_relevance(value):
            raise where.error("target_rel", f"{value!r} is not a positive finite number")
    return values
