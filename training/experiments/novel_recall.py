"""How many of the novel labels are among the first, where all labels are ranked.

Shapes: q test rows, L labels, K ranked labels a row.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Rows
from training.evaluation.metrics import ranking_outcome, recall

TOPS = (5, 30, 100)  # k of `novel_R@k`


def novel_recalls(
    ranked: Rows, positives: csr_matrix, filtered: csr_matrix, *, seen: int
) -> dict[str, float]:
    """`novel_R@k` in percent of `ranked` [q, K], over the rows that have a novel label.

    `positives` and `filtered` are bool [q, L]; the first `seen` labels are not novel, so those of
    them that a row has do not count.
    """
    novel = csr_matrix(positives, copy=True)
    novel.data[novel.indices < seen] = False
    outcome = ranking_outcome(ranked, novel, filtered=filtered)
    if not len(outcome.sizes):
        return {f"novel_R@{k}": np.nan for k in TOPS}
    return {f"novel_R@{k}": 100.0 * recall(outcome, k=k) for k in TOPS}
