"""Where votes stand among a few columns: those of an answer, or of candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.types import Indices, Rows

# A table over all columns is filled in less time than so many votes are searched for; a search
# among sorted columns is quicker where a large bundle has few votes.
TABLE_ENTRIES_A_VOTE = 32


def places(labels: Indices, *, among: Sequence[int] | Indices | Rows) -> Rows:
    """Where each of `labels` [v] stands `among` columns [k], -1 where it does not."""
    columns = np.asarray(among, np.int64)
    if len(columns) == 0 or len(labels) == 0:
        return np.full(len(labels), -1, np.int64)
    size = max(int(labels.max()), int(columns.max())) + 1
    if size <= TABLE_ENTRIES_A_VOTE * len(labels):
        place_of = np.full(size, -1, np.int64)
        place_of[columns] = np.arange(len(columns))
        return place_of[labels]
    ascending = np.argsort(columns, kind="stable")
    ordered = columns[ascending]
    place = np.minimum(np.searchsorted(ordered, labels), len(ordered) - 1)
    return np.where(ordered[place] == labels, ascending[place], -1)
