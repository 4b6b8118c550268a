"""Joins what words find with what vectors find: a row's similarity is its cosine plus its words'.

A linear combination of both, as in Bruch et al. (2023), "An Analysis of Fusion Functions for Hybrid
Retrieval". So the same temperature and the same votes serve both.

Shapes: B queries, b rows found by vectors, m matches by words, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from service.core.types import Doubles, Floats, Halves, Rows

Match = tuple[Rows, Doubles]  # rows [m], ascending, and what words add to their cosines [m]
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
    """Return the similarities and rows of queries [B], with the `matches` of their words.

    `similarities` and `rows` [B, b] were found by vectors. Returns [B, c] with b <= c, descending;
    row -1 fills missing places.
    """
    if not any(len(matched) for matched, _ in matches):
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
    matches: Match,
    cosines: Callable[[Rows], Floats],
) -> tuple[Floats, Rows]:
    """Return the similarities and rows of one query, [at most b + m] each, descending."""
    found = rows >= 0
    similarities, rows = similarities[found], rows[found]
    matched, by_words = matches[0], matches[1].astype(np.float32)
    if not len(matched):
        return similarities, rows
    place = np.minimum(np.searchsorted(matched, rows), len(matched) - 1)
    known = matched[place] == rows  # [b]
    similarities = similarities + np.where(known, by_words[place], np.float32(0))
    new = np.ones(len(matched), bool)
    new[place[known]] = False
    similarities = np.concatenate([similarities, cosines(matched[new]) + by_words[new]])
    rows = np.concatenate([rows, matched[new]])
    order = np.lexsort((rows, -similarities))
    return similarities[order], rows[order]
