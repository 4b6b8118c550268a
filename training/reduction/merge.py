"""Merges near rows with overlapping labels into one key: their mean, with the union of labels.

Shapes: N instances, m keys after some merges, L labels, d dimensions, C candidate pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Doubles, Floats, Rows
from training.reduction.memory import ReducedMemory, WholeMemory, neighbours, presence

NEAR = 16  # neighbours of a key that it may be merged with
SHARE = 0.25  # of the keys, merged at most before neighbours are searched again


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """Groups of rows that became one key each."""

    sums: Floats  # [m, d], sums of the member rows' vectors
    labels_of: csr_matrix  # [m, L], entries 0 and 1
    group: Rows  # [N], the group of each row

    @property
    def keys(self) -> Floats:
        """The mean of each group, normalised, [m, d]."""
        norms = np.linalg.norm(self.sums, axis=1, keepdims=True)
        return np.asarray(self.sums / np.maximum(norms, 1e-12), np.float32)


def merge(
    memory: WholeMemory, budgets: Sequence[int], *, rng: np.random.Generator
) -> Iterator[ReducedMemory]:
    """Merge pairs of keys down to each budget; budgets must fall."""
    rows = len(memory.instances)
    groups = Groups(
        sums=memory.instances, labels_of=presence(memory.labels_of), group=np.arange(rows)
    )
    for budget in budgets:
        while len(groups.sums) > budget:
            groups = merged(groups, down_to=budget)
        yield reduced(memory, groups)


def merged(groups: Groups, *, down_to: int) -> Groups:
    """One round: joins the best disjoint pairs, at most a `SHARE` of the keys."""
    keys = groups.keys
    similarities, rows = neighbours(keys, count=min(NEAR, len(keys) - 1))
    left = np.repeat(np.arange(len(keys)), rows.shape[1])
    right, similarity = rows.ravel(), similarities.ravel()
    once = (left < right) | ~_mutual(left, right, rows)
    left, right, similarity = left[once], right[once], similarity[once]
    fit = similarity + overlap(groups.labels_of, left=left, right=right)
    most = min(len(keys) - down_to, max(1, int(SHARE * len(keys))))
    into = np.arange(len(keys))
    free = np.ones(len(keys), bool)
    for pair in np.argsort(-fit, kind="stable"):
        first, second = left[pair], right[pair]
        if free[first] and free[second]:
            free[first] = free[second] = False
            into[max(first, second)] = min(first, second)
            most -= 1
            if not most:
                break
    return joined(groups, into=into)


def overlap(labels_of: csr_matrix, *, left: Rows, right: Rows) -> Doubles:
    """Jaccard similarity of the labels of pairs of rows, [C]; 0 where neither has any."""
    shared = np.asarray(labels_of[left].multiply(labels_of[right]).sum(axis=1)).ravel()
    sizes = np.diff(labels_of.indptr)
    union = sizes[left] + sizes[right] - shared
    return np.asarray(shared / np.maximum(union, 1), np.float64)


def joined(groups: Groups, *, into: Rows) -> Groups:
    """Join groups: `into` [m] has the group that each joins, its own place if it remains."""
    remaining, place = np.unique(into, return_inverse=True)
    shape = (len(remaining), len(into))
    total = csr_matrix((np.ones(len(into), np.float32), (place, np.arange(len(into)))), shape=shape)
    return Groups(
        sums=total @ groups.sums,
        labels_of=presence(csr_matrix(total @ groups.labels_of)),
        group=place[groups.group],
    )


def reduced(memory: WholeMemory, groups: Groups) -> ReducedMemory:
    """The groups as keys; each has the text of the member nearest to its mean."""
    keys = groups.keys
    nearness = np.einsum("nd,nd->n", memory.instances, keys[groups.group])
    order = np.lexsort((-nearness, groups.group))
    _, first = np.unique(groups.group[order], return_index=True)
    return ReducedMemory(instances=keys, labels_of=groups.labels_of, texts_of=order[first])


def _mutual(left: Rows, right: Rows, rows: Rows) -> np.ndarray:
    """Whether `left` is a neighbour of `right` too, so that the pair occurs twice, [C]."""
    return np.asarray((rows[right] == left[:, None]).any(axis=1))
