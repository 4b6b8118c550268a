"""The rows of each batch as a pure function of seed and step, so resuming needs no state.

Each epoch has a new order. It takes a row at most once, and skips rows that fill no last batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.types import Rows


def steps_per_epoch(rows: int, size: int) -> int:
    """Return the number of whole batches in an epoch, at least one."""
    return max(1, rows // size)


def batch_rows(
    step: int, *, rows: Rows, size: int, clusters: Sequence[Rows] | None, seed: int
) -> Rows:
    """Return the rows of one step.

    Each of `clusters` holds indices into `rows` that stay together. Clusters are shuffled, and so
    are the rows within each.
    """
    epoch, place = divmod(step, steps_per_epoch(len(rows), size))
    rng = np.random.default_rng([seed, epoch, 1])
    if clusters is None:
        order = rng.permutation(len(rows))
    else:
        order = np.concatenate(
            [rng.permutation(clusters[i]) for i in rng.permutation(len(clusters))]
        )
    return rows[order[place * size : (place + 1) * size]]


def step_rng(seed: int, step: int) -> np.random.Generator:
    """Return the generator that samples a step's positives and negatives."""
    return np.random.default_rng([seed, step, 2])


def dropout_seed(seed: int, step: int, process: int) -> int:
    """Return the seed of a step's dropout, which differs between processes."""
    return int(np.random.SeedSequence([seed, step, process, 3]).generate_state(1)[0])
