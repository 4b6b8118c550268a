"""Queries as they are answered when some labels were posted a moment ago.

A run's memory knows how many rows each label has, and trees learn that labels of few rows are
seldom relevant. A label that was just posted has no row or one, however often it will be clicked.
So trees also learn from a memory in which a share of the labels is novel.

Shapes: L labels, N rows of the memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Bools
from training.reranking.queries import Queries

SHARE = 0.2  # of the labels that are novel
WITH_QUERY = 0.5  # of these labels that were posted with a query


def with_novel_labels(queries: Queries, rng: np.random.Generator) -> Queries:
    """The same queries, where some labels are novel: one of their rows votes for them, or none."""
    memory = queries.labels.memory
    novel = rng.random(memory.labels_of.shape[1]) < SHARE
    labels_of = as_posted(memory.labels_of, novel, rng)
    labels = replace(queries.labels, memory=replace(memory, labels_of=labels_of), novel=novel)
    return replace(queries, labels=labels)


def as_posted(labels_of: csr_matrix, novel: Bools, rng: np.random.Generator) -> csr_matrix:
    """Y [N, L] with no vote for labels that are `novel` [L], or with one for a part of them."""
    coo = labels_of.tocoo()
    drawn = rng.permutation(coo.nnz)
    _, first = np.unique(coo.col[drawn], return_index=True)  # one vote for each label, at random
    with_query = rng.random(labels_of.shape[1]) < WITH_QUERY
    stays = ~novel[coo.col]
    one = drawn[first]
    stays[one] |= with_query[coo.col[one]]
    kept = (coo.data[stays], (coo.row[stays], coo.col[stays]))
    return csr_matrix(kept, shape=labels_of.shape, dtype=labels_of.dtype)
