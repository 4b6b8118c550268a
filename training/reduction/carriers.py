"""Carriers of a row's labels: for each vote of Y, the neighbours that vote for the same label.

Shapes: N instances, L labels, E votes (entries of Y, row by row), C pairs of a vote and a carrier,
d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.types import Floats, Rows
from training.reduction.memory import WholeMemory, neighbours, presence

NEAR = 64  # neighbours of a row that are considered
_CHUNK = 100_000  # votes whose two vectors are multiplied at once


@dataclass(frozen=True, kw_only=True, eq=False)
class Carriers:
    """Pairs (vote, carrier) with the carrier's similarity to the vote's row.

    Pairs are ordered by vote, then by falling similarity: the pairs of vote e are at `start[e]` to
    `start[e + 1]`, the votes of row i at `votes[i]` to `votes[i + 1]`.
    """

    votes: Rows  # [N + 1]
    floor: Floats  # [E] similarity of the vote's row to the vote's label key
    start: Rows  # [E + 1]
    vote: Rows  # [C]
    carrier: Rows  # [C]
    similarity: Floats  # [C]


def find_carriers(memory: WholeMemory, *, near: int = NEAR) -> Carriers:
    """Find the carriers among the `near` nearest neighbours of each row."""
    y = presence(memory.labels_of)
    similarities, rows = neighbours(memory.instances, count=near)
    numbered = csr_matrix((np.arange(1.0, y.nnz + 1), y.indices, y.indptr), shape=y.shape)
    row_of_vote = np.repeat(np.arange(y.shape[0]), np.diff(y.indptr))
    votes, carriers, carrier_similarities = [], [], []
    for rank in range(rows.shape[1]):
        column = rows[:, rank]
        exists = (column >= 0).astype(np.float32)[:, None]
        shared = csr_matrix(numbered.multiply(y[np.maximum(column, 0)].multiply(exists)))
        shared.eliminate_zeros()
        vote = shared.data.astype(np.int64) - 1
        votes.append(vote)
        carriers.append(column[row_of_vote[vote]])
        carrier_similarities.append(similarities[row_of_vote[vote], rank])
    vote = np.concatenate(votes)
    order = np.argsort(vote, kind="stable")  # stable: ranks were added by falling similarity
    return Carriers(
        votes=y.indptr.astype(np.int64),
        floor=label_similarities(memory, y),
        start=np.concatenate([[0], np.cumsum(np.bincount(vote, minlength=y.nnz))]),
        vote=vote[order],
        carrier=np.concatenate(carriers)[order],
        similarity=np.concatenate(carrier_similarities)[order],
    )


def label_similarities(memory: WholeMemory, y: csr_matrix) -> Floats:
    """The similarity s(x_i, z_l) of every vote of row i for label l, [E]."""
    rows = np.repeat(np.arange(y.shape[0]), np.diff(y.indptr))
    parts: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    for start in range(0, y.nnz, _CHUNK):
        cut = slice(start, start + _CHUNK)
        parts.append(
            np.einsum("ed,ed->e", memory.instances[rows[cut]], memory.labels[y.indices[cut]])
        )
    return np.concatenate(parts)
