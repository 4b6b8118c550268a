"""Joins what words find with what vectors find: a row's similarity is its cosine plus its words'.

A linear combination of both, as in Bruch et al. (2023), "An Analysis of Fusion Functions for Hybrid
Retrieval". So the same temperature and the same votes serve both.

Shapes: B queries, b rows found by vectors, m matches by words, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from service.core.lexical.lexicon import NO_MATCH, Match
from service.core.types import Floats, Halves, Rows

Cosines = Callable[[int, Rows], Floats]  # the place of a query, rows [n] -> their cosines [n]


def cosines_by(vectors_of: Callable[[Rows], Halves], queries: Floats) -> Cosines:
    """Return the cosines of queries [B, d] with rows, whose vectors `vectors_of` reads."""
    # A row's bits do not depend on the other rows, as they might in a product of matrices.
    return lambda place, rows: np.vecdot(vectors_of(rows).astype(np.float32), queries[place])


def with_matches(
    similarities: Floats,
    rows: Rows,
    *,
    matches: Sequence[Match],
    cosines: Cosines,
) -> tuple[Floats, Rows]:
    """Return the similarities and rows of queries [B], with what their words add and find.

    `similarities` and `rows` [B, b] were found by vectors. Returns [B, c] with b <= c, descending;
    row -1 fills missing places.
    """
    if all(match is NO_MATCH for match in matches):
        return similarities, rows
    joined = [
        _joined(similarities[place], rows[place], one, partial(cosines, place))
        for place, one in enumerate(matches)
    ]
    width = max(len(found) for _, found in joined)
    shape = len(matches), max(width, rows.shape[1])
    all_similarities, all_rows = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64)
    for place, (similarity, found) in enumerate(joined):
        all_similarities[place, : len(found)], all_rows[place, : len(found)] = similarity, found
    return all_similarities, all_rows


def _joined(
    similarities: Floats,
    rows: Rows,
    match: Match,
    cosines: Callable[[Rows], Floats],
) -> tuple[Floats, Rows]:
    """Return the similarities and rows of one query, [at most b + m] each, descending."""
    found = rows >= 0
    new = np.setdiff1d(match.rows, rows, assume_unique=True)
    similarities = np.concatenate([similarities[found], cosines(new)])
    rows = np.concatenate([rows[found], new])
    similarities += match.added(rows).astype(np.float32)
    order = np.lexsort((rows, -similarities))
    return similarities[order], rows[order]
