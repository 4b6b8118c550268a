"""The match types that a request asks for: the stage that leaves out all other labels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

import numpy as np

from service.core.lexical.words import TypedQuery
from service.core.prediction.ranking import Query, Ranking
from service.core.types import MatchType

MOST_TYPED = 20_000  # labels of one query that may have the match types of a request
MOST_READ = 1_000  # of these, the best that are compared even if they have other words


@dataclass(frozen=True, slots=True)
class OfTypes:
    """Keeps the labels that match the query in one of `types`."""

    types: Collection[MatchType]

    def wants(self, count: int) -> int:
        """Return the number of labels that are compared."""
        return MOST_TYPED

    def apply(self, ranking: Ranking, query: Query, count: int) -> Ranking:
        """Return the `count` best labels of these types."""
        view, typed, rows = query.view, TypedQuery(query.reading.text), np.zeros(0, np.int64)
        if "broad" not in self.types:
            rows = view.covered_labels(query.reading.text)
        covered = set(view.votes(rows)[0].tolist())
        found = (
            place
            for place, column in enumerate(ranking.columns)
            if (place < MOST_READ or column in covered)
            and typed.match(*view.labels.texts_at(column)) in self.types
        )
        return ranking.only(list(islice(found, count)))
