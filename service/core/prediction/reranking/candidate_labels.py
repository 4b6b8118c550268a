"""What the second ranking reads of a memory, and how a view offers it.

Shapes: k candidates, L labels of the bundle, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.memory.part import WeightedVotes, gather
from service.core.memory.view import View
from service.core.prediction.many_queries import ValueRows
from service.core.types import Bools, Halves, Indices, Rows


class CandidateLabels(ValueRows, Protocol):
    """The rows of V, and keys, texts and frequencies of labels by column."""

    def keys_of(self, columns: Rows) -> Halves:
        """The keys [k, d] of the texts of labels at `columns` [k]."""
        ...

    def texts_of(self, columns: Rows) -> Sequence[str]:
        """Their texts [k]."""
        ...

    def frequencies_of(self, columns: Rows) -> Rows:
        """How often each of them was clicked, as rows that vote for it, [k]; 0 if it is novel."""
        ...


NOVEL = -1  # in place of the frequency of a label that was not in the training data


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelsOfView:
    """The labels of a view; `trained` [L] are the `trained_frequencies` of its bundle."""

    view: View
    trained: Indices

    def is_instance(self, rows: Rows) -> Bools:
        """Which of `rows` [m] are instance rows."""
        return self.view.is_instance(rows)

    def weighted_votes(self, rows: Rows) -> WeightedVotes:
        """The labels that `rows` [m] vote for, how many each row has, and the votes' weights."""
        return self.view.weighted_votes(rows)

    def keys_of(self, columns: Rows) -> Halves:
        """The keys [k, d] of the texts of labels at `columns` [k]."""
        rows, posted = columns + self.view.bundle.instances, self.view.ownership.label_rows
        for place, column in enumerate(columns.tolist() if len(posted) else ()):
            of_label = posted.get(column)
            if of_label is not None:
                rows[place] = of_label[0]  # the row of its text is the first
        return self.view.vectors(rows)

    def texts_of(self, columns: Rows) -> Sequence[str]:
        """Their texts [k]."""
        labels = self.view.labels
        return [labels.text_at(column) for column in columns.tolist()]

    def frequencies_of(self, columns: Rows) -> Rows:
        """How many rows vote for each of them, [k]: trained ones, its own queries, and clicks.

        0 for novel labels, however many rows vote for them: trees learned that labels of few rows
        are seldom clicked, but a novel label has few because it has not been there for long.
        """
        trained = np.full(len(columns), NOVEL, np.int64)
        of_bundle = columns < len(self.trained)
        trained[of_bundle] = self.trained[columns[of_bundle]]
        frequencies, known = np.maximum(trained, 0), trained != NOVEL
        ownership = self.view.ownership
        if len(ownership.label_rows) or len(ownership.queries_by_column):
            posted = [self._posted(column) for column in columns[known].tolist()]
            frequencies[known] += np.array(posted, np.int64)  # there may be none
        return frequencies

    def _posted(self, column: int) -> int:
        """The rows that were posted for a label, less those of the bundle that they replace."""
        ownership, bundle = self.view.ownership, self.view.bundle
        clicks, rows = len(ownership.queries_for(column)), ownership.label_rows.get(column)
        if rows is None:
            return clicks
        replaced = bundle.label_details.at(column).rows if column < bundle.labels else ()
        return clicks + len(rows) - 1 - len(replaced)


def trained_frequencies(bundle: Bundle) -> Indices:
    """How many instance rows of a bundle vote for each of its labels [L], without posted clicks.

    Clicks are counted by `RowOwnership`, also those that a snapshot holds. `NOVEL` for labels of a
    snapshot that were not in the training data.
    """
    clicked, _ = gather(bundle.indptr, bundle.indices, bundle.clicks)
    counts = np.bincount(bundle.indices, minlength=bundle.labels)
    frequencies = (counts - np.bincount(clicked, minlength=bundle.labels)).astype(np.int32)
    frequencies[bundle.label_details.novel_columns()] = NOVEL
    return frequencies
