"""Rows of a split: more pairs, a selection, two splits in one.

Shapes: N rows, C columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from training.datasets.dataset import Split, Texts


def with_pairs(
    split: Split, pairs: Mapping[tuple[str, int], float], *, taken: Collection[str]
) -> Split:
    """Add the weights of pairs (query, column), each to the first row with the query's text.

    Queries without a row get a new one at the end, with a uid that is not among `taken`.
    """
    texts, uids = list(split.instances.texts), list(split.instances.uids)
    place: dict[str, int] = {}
    for row, text in enumerate(texts):
        place.setdefault(text, row)
    used = {*taken, *uids}
    for query, _ in pairs:
        if query not in place:
            place[query] = len(texts)
            texts.append(query)
            uids.append(_unused(query, used))
            used.add(uids[-1])
    positions = ([place[query] for query, _ in pairs], [column for _, column in pairs])
    shape = (len(texts), split.labels_of.shape[1])
    added = csr_matrix((np.array([*pairs.values()], np.float32), positions), shape=shape)
    return Split(
        instances=Texts(uids=tuple(uids), texts=tuple(texts)),
        labels_of=csr_matrix(_lengthened(split.labels_of, len(texts)) + added),
        filtered=_lengthened(split.filtered, len(texts)),
        metadata_of=None
        if split.metadata_of is None
        else _lengthened(split.metadata_of, len(texts)),
    )


def select(split: Split, rows: NDArray[np.bool_]) -> Split:
    """Return the rows that are marked [N] and have a label."""
    chosen = np.flatnonzero(rows & (np.diff(split.labels_of.indptr) > 0))
    texts = split.instances
    return Split(
        instances=Texts(
            uids=tuple(texts.uids[row] for row in chosen),
            texts=tuple(texts.texts[row] for row in chosen),
        ),
        labels_of=split.labels_of[chosen],
        filtered=split.filtered[chosen],
        metadata_of=None if split.metadata_of is None else split.metadata_of[chosen],
    )


def joined(first: Split, second: Split) -> Split:
    """Return the rows of both."""
    metadata = None
    if first.metadata_of is not None and second.metadata_of is not None:
        metadata = vstack([first.metadata_of, second.metadata_of], format="csr")
    return Split(
        instances=Texts(
            uids=(*first.instances.uids, *second.instances.uids),
            texts=(*first.instances.texts, *second.instances.texts),
        ),
        labels_of=vstack([first.labels_of, second.labels_of], format="csr"),
        filtered=vstack([first.filtered, second.filtered], format="csr"),
        metadata_of=metadata,
    )


def with_columns(split: Split, columns: NDArray[np.int64]) -> Split:
    """Return the split with these columns alone, in this order."""
    return replace(
        split, labels_of=split.labels_of[:, columns], filtered=split.filtered[:, columns]
    )


def _lengthened(matrix: csr_matrix, rows: int) -> csr_matrix:
    longer = matrix.copy()
    longer.resize((rows, matrix.shape[1]))
    return longer


def _unused(text: str, used: Collection[str]) -> str:
    """The text as its own uid, unless another row has that uid."""
    uid = text
    while uid in used:
        uid += "'"
    return uid
