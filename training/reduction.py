"""Reduces a memory to the instance keys that best stand for all others with the same labels.

RAE-XMC leaves smaller memories to future work (section 6). Here greedy facility location, over
neighbors that share labels, chooses the rows. `keymatch lab budget` measures what is lost. Other
methods are in training/lab/measured/not-adopted.md.

Shapes: N instances, L labels, E votes (entries of Y, row by row), C pairs of a vote and a carrier,
d dimensions.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.index.exact import exact_search
from service.core.index.protocol import RowFilter, batches
from service.core.types import Floats, Rows

NEAR = 64  # considered neighbors of each row
SEED = 0
_CHUNK = 100_000  # votes whose two vectors are multiplied at once


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeMemory:
    """The memory before its instances are reduced."""

    instances: Floats  # [N, d] unit vectors
    labels_of: csr_matrix  # [N, L]
    labels: Floats  # [L, d] unit vectors


def representative_rows(memory: WholeMemory, *, shares: Sequence[float]) -> dict[float, Rows]:
    """Return the rows to keep, ascending, for each share of the instances, largest share first.

    Raises `InvalidInput` for a share outside 0..1.
    """
    shares, total = sorted(set(shares), reverse=True), len(memory.instances)
    budgets = {share: budget_rows(share, total=total) for share in shares}
    order: Rows = np.arange(total)
    if min(budgets.values(), default=total) < total:
        order = facility_order(find_carriers(memory), rng=np.random.default_rng(SEED))
    return {share: np.sort(order[:rows]) for share, rows in budgets.items()}


def budget_rows(share: float, *, total: int) -> int:
    """Return the number of rows that make up a share of `total`, at least 1."""
    if not 0.0 < share <= 1.0:
        raise InvalidInput(
            f"a share of the instances must lie above 0 and not above 1, not {share:g}",
            field="instances",
        )
    return min(total, max(1, round(share * total)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Carriers:
    """The carriers of each vote in Y: the neighbors of its row that vote for the same label.

    Pairs (vote, carrier) are ordered by vote, then by falling similarity of the carrier to the
    vote's row. The pairs of vote e are at `start[e]` to `start[e + 1]`, the votes of row i at
    `votes[i]` to `votes[i + 1]`.
    """

    votes: Rows  # [N + 1]
    floor: Floats  # [E] similarity of the vote's row to the key of the vote's label
    start: Rows  # [E + 1]
    vote: Rows  # [C]
    carrier: Rows  # [C]
    similarity: Floats  # [C] of the carrier to the vote's row


def find_carriers(memory: WholeMemory, *, near: int = NEAR) -> Carriers:
    """Find the carriers among the `near` nearest neighbors of each row."""
    y = csr_matrix(memory.labels_of != 0).astype(np.float32)
    y.sort_indices()
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


def neighbours(vectors: Floats, *, count: int) -> tuple[Floats, Rows]:
    """Return similarities and rows of the `count` nearest other vectors of each, [n, count] each.

    They are ordered by falling similarity; missing neighbors have row -1.
    """
    row_filter = RowFilter(start=0, stop=len(vectors))
    similarities, rows = exact_search(
        vectors.astype(np.float16), vectors, count=count + 1, row_filter=row_filter
    )
    # Subtle: if many vectors are equal, the search may not return the vector itself.
    is_itself = rows == np.arange(len(vectors))[:, None]
    is_itself[~is_itself.any(axis=1), -1] = True
    shape = (len(vectors), count)
    return similarities[~is_itself].reshape(shape), rows[~is_itself].reshape(shape)


def label_similarities(memory: WholeMemory, y: csr_matrix) -> Floats:
    """Return the similarity s(x_i, z_l) for each vote of a row i for a label l, [E]."""
    rows = np.repeat(np.arange(y.shape[0]), np.diff(y.indptr))
    similarities = np.empty(y.nnz, np.float32)
    for cut in batches(y.nnz, _CHUNK):
        instances, labels = memory.instances[rows[cut]], memory.labels[y.indices[cut]]
        similarities[cut] = np.einsum("ed,ed->e", instances, labels)
    return similarities


def facility_order(carriers: Carriers, *, rng: np.random.Generator) -> Rows:
    """Order the rows [N] by greedy maximization of the facility location, best first.

    Each training row is taken as a query whose labels must be found without that row. Each of its
    votes adds the row's similarity to the nearest kept row with the same label, or to the label's
    key if that is nearer. This is tau times the log of the largest addend in Eq. 7. The sum is
    submodular, so gains only fall: a row's gain is computed again only when the row comes first
    (lazy greedy). Rows without any gain follow in random order.
    """
    rows = len(carriers.votes) - 1
    by_carrier = np.argsort(carriers.carrier, kind="stable")
    start = np.searchsorted(carriers.carrier[by_carrier], np.arange(rows + 1))
    vote, similarity = carriers.vote[by_carrier], carriers.similarity[by_carrier]
    best = carriers.floor.copy()  # [E]

    def gain(row: int) -> float:
        cut = slice(start[row], start[row + 1])
        return float((similarity[cut] - best[vote[cut]]).clip(0.0).sum())

    heap = [(-gain(row), tie_break, row) for tie_break, row in enumerate(rng.permutation(rows))]
    heapq.heapify(heap)
    order = []
    while heap:
        _, tie_break, row = heapq.heappop(heap)
        current = -gain(row)
        if heap and current > heap[0][0]:
            heapq.heappush(heap, (current, tie_break, row))
            continue
        cut = slice(start[row], start[row + 1])
        best[vote[cut]] = np.maximum(best[vote[cut]], similarity[cut])
        order.append(int(row))
    return np.array(order, np.int64)
