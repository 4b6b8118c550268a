"""Whether a bundle's confidences can be believed, on test rows and on nonsense.

Test rows are asked as the service would answer them. Labels that the data set filters for a row are
left out, as well as the label whose text is the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from service.core.prediction.reliability import Reliability, reliability
from service.core.text_identity import identity
from service.core.types import Bools, Doubles, Keyword
from training.evaluation.asking import Asking
from training.evaluation.noise import nonsense

ROWS = 5_000  # the most test rows that are asked
NONSENSE = 1_000  # queries that mean nothing
SHOWN = 10  # keywords of a query


@dataclass(frozen=True, kw_only=True)
class ConfidenceRow:
    """The reliability on test rows, and how much of the nonsense gets no keyword, in percent.

    The nonsense is asked with the reliability's threshold as `min_confidence`.
    """

    reliability: Reliability
    nonsense_empty: float


def measure_confidence(asking: Asking) -> ConfidenceRow:
    """Measure a bundle that has confidences for the kind of score of the options."""
    queries, chance = asking.dataset.test.instances.texts, Random(f"confidence {asking.seed}")
    rows = asking.drawn(ROWS)
    confidences: list[Doubles] = []
    relevant: list[Bools] = []
    answers = asking.keywords([queries[row] for row in rows], top_k=SHOWN)
    for row, keywords in zip(rows, answers, strict=True):
        of_row, hits = _judged(asking, row, keywords)
        confidences.append(of_row)
        relevant.append(hits)
    found = reliability(confidences, relevant)
    meaningless = [nonsense(chance.choice(queries), chance) for _ in range(NONSENSE)]
    empty = 0
    for keywords in asking.keywords(meaningless, top_k=SHOWN):
        sure = max((keyword.confidence or 0.0 for keyword in keywords), default=0.0)
        empty += sure < found.threshold
    return ConfidenceRow(reliability=found, nonsense_empty=100.0 * empty / NONSENSE)


def _judged(asking: Asking, row: int, keywords: Sequence[Keyword]) -> tuple[Doubles, Bools]:
    """Return the confidences [k] of a row's keywords that count, and which are relevant [k]."""
    filtered, relevant = asking.filtered(row), asking.relevant(row)
    own = identity(asking.dataset.test.instances.texts[row])
    judged = [
        keyword
        for keyword in keywords
        if keyword.id not in filtered and identity(keyword.text) != own
    ]
    return (
        np.array([keyword.confidence for keyword in judged], np.float64),
        np.array([keyword.id in relevant for keyword in judged], bool),
    )
