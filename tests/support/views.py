"""Read the content of a view row by row, or through a search.

A row is described by its kind ("alias" for one), its text and the ids of the labels that it votes
for.
"""

from collections import Counter

import numpy as np

from service.core.encoding.encoder import encode
from service.core.lexical.words import words_of
from service.core.memory.view import View
from service.core.types import Label, Role, RowKind, Rows
from tests.support.changes import ENCODER

Row = tuple[RowKind | str, str, tuple[str, ...]]
PlanValues = list[tuple[int, int, list[int]]]


def alive_rows(view: View) -> Rows:
    """Return the numbers of all rows without a tombstone; fail if two parts hold the same row."""
    rows = view.alive_rows()
    assert len(set(rows.tolist())) == len(rows)
    return rows


def described_rows(view: View) -> list[Row]:
    """Return the description of every alive row, ordered by row number."""
    rows = alive_rows(view)
    columns, counts = view.votes(rows)
    votes = np.split(columns, np.cumsum(counts)[:-1]) if len(rows) else []
    return [
        (
            "alias" if alias else RowKind.INSTANCE if instance else RowKind.LABEL,
            view.text(row),
            tuple(sorted(view.labels.id_at(column) for column in voted.tolist())),
        )
        for row, instance, alias, voted in zip(
            rows.tolist(),
            view.is_instance(rows).tolist(),
            view.is_alias(rows).tolist(),
            votes,
            strict=True,
        )
    ]


def vote_weights(view: View) -> dict[tuple[str, str], float]:
    """Map (row's text, label's id) to the weight of the vote if it is not 1."""
    rows = alive_rows(view)
    columns, counts, weights = view.weighted_votes(rows)
    return {
        (view.text(row), view.labels.id_at(column)): weight
        for row, column, weight in zip(
            np.repeat(rows, counts).tolist(), columns.tolist(), weights.tolist(), strict=True
        )
        if weight != 1.0
    }


def label_frequencies(view: View) -> Rows:
    """Return how many alive instance rows without aliases vote for each column of V."""
    rows = alive_rows(view)
    columns, _ = view.votes(rows[view.is_instance(rows) & ~view.is_alias(rows)])
    return np.bincount(columns, minlength=view.labels.columns)


def row_counts(view: View) -> Counter[Row]:
    """Count the alive rows of each description."""
    return Counter(described_rows(view))


def retrieved_texts(view: View, query: str, **options: object) -> list[str]:
    """Return the texts of all rows that a search finds, the nearest first."""
    vectors = encode(ENCODER, [query], role=Role.QUERY)
    rows = view.retrieve(vectors, depth=view.base_rows + view.live_rows, **options)[1][0]
    return [view.text(int(row)) for row in rows if row >= 0]


def voting_texts(view: View, label_id: str) -> list[str]:
    """Return the texts of all alive rows that vote for a label, ordered by row number."""
    return [text for _, text, voted in described_rows(view) if label_id in voted]


def labels_by_id(view: View) -> dict[str, Label]:
    """Map the id of each label to the label."""
    table = view.labels
    columns = np.arange(table.columns, dtype=np.int32)
    labels = [table.at(column) for column in columns[~table.is_deleted(columns)].tolist()]
    return {label.id: label for label in labels}


def plan_values(view: View) -> PlanValues:
    """Return the first row, the stop (exclusive) and the rows of every plan, then of item plans."""
    plans = (*view.learned.plans, *(() if view.items is None else view.items.plans))
    return [(plan.first, plan.stop, plan.rows.tolist()) for plan in plans]


def word_counts(view: View) -> Counter[str]:
    """Count the alive rows of each word by the view's lexicon; dead rows' words are tried, too."""
    learned = (text for part in view.parts for text in part.contents.texts)
    texts = [*view.bundle.instance_texts, *view.bundle.label_texts, *learned]
    words = {word for text in texts for word in words_of(text)}
    return Counter({word: rows for word in words if (rows := view.lexicon.frequency(word))})


def matched_texts(view: View, query: str) -> Counter[tuple[str, float, float]]:
    """Count the texts of the rows that share words with a query, by coverage and `own`."""
    matches = view.lexicon.matches(query, share=1.0)
    columns = matches.rows, matches.coverage.round(9), matches.own.round(9)
    found = zip(*(column.tolist() for column in columns), strict=True)
    return Counter((view.text(row), part, alone) for row, part, alone in found)
