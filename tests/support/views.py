"""What a view holds: all of it, without any search, or what a search finds."""

from collections import Counter

import numpy as np

from service.core.encoding.encoder import encode
from service.core.memory.part import living_places
from service.core.memory.view import View
from service.core.types import Label, Role, RowKind, Rows
from tests.support.changes import ENCODER

Row = tuple[RowKind, str, tuple[str, ...]]
Plan = list[tuple[int, int, list[int]]]


def living(view: View) -> Rows:
    """The numbers of all living rows; each lies in one part only."""
    base = living_places(view.base_alive, view.base_rows)
    rows = np.concatenate([base, *(part.living() for part in view.parts)])
    assert len(set(rows.tolist())) == len(rows)
    return rows


def sayings(view: View) -> list[Row]:
    """What every living row says, in order: kind, text, and the ids that it votes for."""
    rows = living(view)
    columns, counts = view.votes(rows)
    votes = np.split(columns, np.cumsum(counts)[:-1]) if len(rows) else []
    return [
        (
            RowKind.INSTANCE if instance else RowKind.LABEL,
            view.text(row),
            tuple(sorted(view.labels.id_at(column) for column in voted.tolist())),
        )
        for row, instance, voted in zip(
            rows.tolist(), view.is_instance(rows).tolist(), votes, strict=True
        )
    ]


def said(view: View) -> Counter[Row]:
    """The sayings, whatever their order."""
    return Counter(sayings(view))


def found(view: View, query: str, **options: object) -> list[str]:
    """The texts of all rows that a search returns, the nearest first."""
    vectors = encode(ENCODER, [query], role=Role.QUERY)
    rows = view.retrieve(vectors, depth=view.base_rows + view.live_rows, **options)[1][0]
    return [view.text(int(row)) for row in rows if row >= 0]


def voters(view: View, label_id: str) -> list[str]:
    """The texts of all living rows that vote for a label, in order of their row."""
    return [text for _, text, voted in sayings(view) if label_id in voted]


def labels(view: View) -> dict[str, Label]:
    """Every label by its id."""
    table = view.labels
    columns = np.arange(table.columns, dtype=np.int32)
    found = [table.at(column) for column in columns[~table.is_deleted(columns)].tolist()]
    return {label.id: label for label in found}


def plan(view: View) -> Plan:
    """The extents as plain values: first, stop, rows."""
    return [(extent.first, extent.stop, extent.rows.tolist()) for extent in view.extents]
