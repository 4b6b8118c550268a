"""Which rows make which batch: a pure function of seed and step, so that a resume needs no state.

An epoch takes every row once; what does not fill a last batch waits for another epoch's order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.types import Rows


def steps_per_epoch(rows: int, size: int) -> int:
    """How many whole batches there are in an epoch, at least one."""
    return max(1, rows // size)


def batch_rows(
    step: int, *, rows: Rows, size: int, clusters: Sequence[Rows] | None, seed: int
) -> Rows:
    """The rows of one step.

    `clusters`, places in `rows`, are kept together; their order and that within them is shuffled.
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
    """What a step draws positives and negatives with."""
    return np.random.default_rng([seed, step, 2])


def dropout_seed(seed: int, step: int, process: int) -> int:
    """What a step's dropout starts from, another in each process."""
    return int(np.random.SeedSequence([seed, step, process, 3]).generate_state(1)[0])
