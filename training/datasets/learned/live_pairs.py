"""The pairs (query, label) that were learned live, with their weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from service.core.types import Label
from training.datasets.learned.history import History
from training.datasets.sparse_rows import SMALLEST

Pair = tuple[str, int]  # query, column of the memory


def live_pairs(
    history: History, labels: Sequence[Label], known: Collection[Pair], *, everything: bool
) -> dict[Pair, float]:
    """Return the weights that are added to those of the training rows, whose pairs are `known`.

    A clicked pair weighs the sum of its clicks. Of pairs without counted clicks those that are not
    known are added: a query that was posted with its label weighs 1, and a click in a snapshot of
    another log what it weighs in the memory.
    Unless `everything` is wanted, only what was written from `ClickCounts.since` on is returned.
    """
    counts = history.counts
    weights: dict[Pair, float] = {}
    for query, click in history.view.ownership.clicks.items():
        in_memory = history.view.ownership.weights_of(query)
        for column in click.columns:
            label = history.view.labels.at(column)
            counted = counts.clicks if label.novel else counts.new_clicks
            weight = counted[label.id].get(query, 0.0)
            if not weight and everything and (query, column) not in known:
                weight = in_memory.get(column, 1.0)
            if weight:
                weights[query, column] = max(weight, SMALLEST)  # a float32 above 0
    for label in labels:
        if everything or label.id in counts.posted:
            for query in label.queries:
                if (query, label.index) not in known:
                    weights.setdefault((query, label.index), 1.0)
    return weights
