"""Why a keyword is in an answer: the rows of the memory that voted for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from service.core.memory.view import View
from service.core.prediction.places import places
from service.core.prediction.ranking import Ranking
from service.core.types import Evidence, Indices, RowKind, Rows

EVIDENCE_ROWS = 10  # the most that one keyword's explanation lists


def evidence(view: View, ranking: Ranking) -> list[tuple[Evidence, ...]]:
    """The rows that voted for each of the k columns of a ranking, the heaviest first.

    All votes are walked once, not once for each column. A row that voted for several columns with
    one weight is one `Evidence`, which they share.
    """
    by_weight = np.argsort(-ranking.weights, kind="stable")  # [b]
    rows, similarities = ranking.rows[by_weight], ranking.similarities[by_weight]
    labels, votes_per_key, vote_weights = view.weighted_votes(rows)
    key_of_vote = np.repeat(np.arange(len(rows)), votes_per_key)  # [v]
    weights = ranking.weights[by_weight][key_of_vote]  # [v]
    if vote_weights is not None:
        # The votes of one label are now in another order than their keys: the heaviest comes first.
        weights = weights * vote_weights
        heaviest = np.argsort(-weights, kind="stable")
        labels, key_of_vote, weights = labels[heaviest], key_of_vote[heaviest], weights[heaviest]
    votes, counts = _first_votes(labels, columns=ranking.columns)  # [n], [k]
    keys, weights = key_of_vote[votes], weights[votes]  # [n]
    equal = keys if vote_weights is None else np.arange(len(keys))  # those that share an Evidence
    _, first, place = np.unique(equal, return_index=True, return_inverse=True)
    keys = keys[first]
    shared = [
        Evidence(
            kind=RowKind.INSTANCE if is_instance else RowKind.LABEL,
            text=view.text(row),
            similarity=similarity,
            weight=weight,
        )
        for is_instance, row, similarity, weight in zip(
            view.is_instance(rows[keys]).tolist(),
            rows[keys].tolist(),
            similarities[keys].tolist(),
            weights[first].tolist(),
            strict=True,
        )
    ]
    explained = map(shared.__getitem__, place.tolist())
    return [tuple(islice(explained, count)) for count in counts]


def _first_votes(labels: Indices, *, columns: Sequence[int]) -> tuple[Rows, list[int]]:
    """The first `EVIDENCE_ROWS` votes for each of `columns` [k], and how many each has [k].

    `labels` [v] are the columns that are voted for. Votes are places in `labels` [n], those for the
    first column first.
    """
    column_of_vote = places(labels, among=columns)  # [v]
    voted = np.flatnonzero(column_of_vote >= 0)
    # Stable: the votes for one column keep their order.
    small = column_of_vote[voted].astype(np.min_scalar_type(len(columns)))  # sorted by its digits
    voted = voted[np.argsort(small, kind="stable")]
    counts = np.bincount(column_of_vote[voted], minlength=len(columns))  # [k]
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    first = np.arange(len(voted)) - starts < EVIDENCE_ROWS
    return voted[first], np.minimum(counts, EVIDENCE_ROWS).tolist()
