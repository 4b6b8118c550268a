"""Queries to compare answers to, each once, with its known labels where the file has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from service.bulk.query_file import ONLY_COLUMN, QueryRule
from service.core.errors import InvalidConfig, InvalidData
from service.core.tables.columns import ending_of, read_columns
from service.settings import Limits

KnownLabels = dict[str, tuple[str, ...]]  # query -> ids or texts of its labels, without repetition


def read_queries(
    path: Path,
    *,
    query: str | None,
    labels: Sequence[str],
    limits: Limits,
    delimiter: str | None = None,
) -> KnownLabels:
    """Read the queries of a file in their order; rows of one query add up.

    `labels` name columns; a cell holds the id or the text of a label, a list of them, or nothing.
    `delimiter` is for csv files. Raises `InvalidData` for a query that `POST /predict` would
    refuse, and for a file without one.
    """
    if query is None and (labels or ending_of(path) != ".txt"):
        raise InvalidConfig(f"{path} is a table: name its column of queries by --query")
    column, rule = query or ONLY_COLUMN, QueryRule(limits)
    known: dict[str, dict[str, None]] = {}
    rows = read_columns(path, [column, *labels], delimiter=delimiter)
    for line, (value, *cells) in rows:
        checked = rule.check(value)
        if checked.problem:
            message = f"{checked.problem}; correct or remove the row"
            raise InvalidData(path, message, line=line, field=column)
        of_query = known.setdefault(checked.text, {})
        for name, cell in zip(labels, cells, strict=True):
            for label in _labels_of(cell):
                if not isinstance(label, str):
                    message = f"a label is no text but {type(label).__name__}"
                    raise InvalidData(path, message, line=line, field=name)
                of_query.update({label.strip(): None} if label.strip() else {})
    if not known:
        raise InvalidData(path, "holds no query; give a file with at least one row")
    return {text: tuple(of_query) for text, of_query in known.items()}


def _labels_of(cell: Any) -> Iterator[Any]:
    if cell is None:
        return
    for label in cell if isinstance(cell, list) else [cell]:
        yield str(label) if type(label) is int else label  # an id may be a number
