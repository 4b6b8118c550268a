"""The batches of a distillation: training queries and other texts, without the held-out texts.

Texts are numbered as in the embedder's table: all training instances, all labels, then the
unlabelled texts.

Shapes: N training instances, L labels, B texts of a batch, b keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.core.types import Floats, Rows
from training.batches.order import batch_rows, step_rng
from training.datasets.dataset import Dataset
from training.distillation.settings import DistillationSettings
from training.loop.batch_source import Neighbourhoods


@dataclass(frozen=True, kw_only=True, eq=False)
class TextBatch:
    """Texts that the student encodes, and keys that it is compared over."""

    texts: Rows  # [B]
    keys: Rows  # [b]


@dataclass(frozen=True, kw_only=True, eq=False)
class TextBatches:
    """Draws the batch of each step; a pure function of the seed and the step."""

    settings: DistillationSettings
    queries: Rows  # texts that are training queries
    others: Rows  # labels and unlabelled texts
    keys: Rows  # of the memory: [0, N + L) without the held-out rows
    neighbourhoods: Neighbourhoods = field(default_factory=Neighbourhoods)  # none

    def batch(self, number: int) -> TextBatch:
        """Batch `number` of the run, counted from 0; both kinds of text go round in epochs."""
        settings = self.settings
        queries = min(round(settings.query_share * settings.batch), len(self.queries))
        others = min(settings.batch - queries, len(self.others))
        parts = [
            batch_rows(number, rows=rows, size=size, clusters=None, seed=settings.seed + place)
            for place, (rows, size) in enumerate(((self.queries, queries), (self.others, others)))
            if size
        ]
        drawn = step_rng(settings.seed, number).choice(
            self.keys, size=min(settings.keys, len(self.keys)), replace=False, shuffle=False
        )
        return TextBatch(texts=np.concatenate(parts), keys=drawn)

    def refresh_is_due(self, step: int) -> bool:
        """Never: nothing is mined."""
        return False

    def refresh(self, step: int, instances: Floats, labels: Floats) -> None:
        """Mine nothing."""


def text_batches(
    dataset: Dataset,
    settings: DistillationSettings,
    held_out: Rows,
    unlabelled: Sequence[str] = (),
) -> TextBatches:
    """All texts but the held-out rows and every text that equals one of theirs."""
    queries = dataset.train.instances.texts
    others = [*dataset.labels.texts, *unlabelled]
    unseen = {_comparable(queries[row]) for row in held_out.tolist()}
    rows = np.setdiff1d(np.arange(len(queries)), held_out)
    return TextBatches(
        settings=settings,
        queries=_without(unseen, queries, rows),
        others=len(queries) + _without(unseen, others, range(len(others))),
        keys=np.setdiff1d(np.arange(len(queries) + len(dataset.labels)), held_out),
    )


def _without(texts: set[str], of: Sequence[str], rows: Iterable[int]) -> Rows:
    return np.array([row for row in rows if _comparable(of[row]) not in texts], np.int64)


def _comparable(text: str) -> str:
    return " ".join(text.casefold().split())
