"""A bundle's memory to which the novel labels of a split were posted, as the service would hold it.

Shapes: U novel labels, d dimensions.
"""

from __future__ import annotations

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.changes import PutLabel
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.types import Floats, NewLabel
from training.datasets.novel_split import NovelSplit


def view_with_posted_labels(
    bundle: Bundle, split: NovelSplit, keys: Floats, queries: Floats | None
) -> View:
    """The memory after each novel label was posted, in the order of the split's columns.

    `keys` [U, d] are the vectors of the labels' own rows; `queries` [U, d] those of their queries,
    None where they are posted without one.
    """
    labels, revealed = split.everything.labels, split.revealed()
    changes = []
    for place, column in enumerate(split.novel.tolist()):
        label = NewLabel(
            id=labels.uids[column],
            text=labels.texts[column],
            queries=() if queries is None else (revealed[place],),
        )
        rows = [keys[place]] if queries is None else [keys[place], queries[place]]
        vectors = np.stack(rows).astype(np.float16)
        changes.append(PutLabel(sequence=place + 1, label=label, vectors=vectors))
    return KnowledgeMemory(bundle).apply(changes)
