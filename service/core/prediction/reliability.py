"""Whether confidences can be believed: what they promise against what is relevant.

The calibration error is the expected calibration error (Naeini et al., 2015): the mean gap between
confidence and share of relevant keywords, over ten bins of confidence, weighted by their keywords.

Shapes: n queries; k keywords of one query, which may differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.core.types import Bools, Doubles

BINS = 10
PRECISIONS = (80, 90, 95)  # percent of first keywords, at which queries are counted
KEPT = 95  # percent of the relevant first keywords that the threshold keeps


@dataclass(frozen=True, kw_only=True)
class Bin:
    """The keywords of one bin: their number, mean confidence, and the share that is relevant."""

    low: float
    keywords: int
    confidence: float
    relevant: float


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """The reliability of the confidences of `queries` queries.

    Errors are in points, over all keywords and over first ones. `answered` is the share of queries
    in percent that can be answered so that this percentage of first keywords is relevant, by
    `min_confidence`. `threshold` keeps `KEPT` percent of the relevant first keywords.
    """

    queries: int
    error: float
    first_error: float
    bins: Sequence[Bin]
    answered: Mapping[int, float]
    threshold: float


def reliability(confidences: Sequence[Doubles], relevant: Sequence[Bools]) -> Reliability:
    """Compare the confidences [n][k] of keywords with whether they are relevant [n][k]."""
    every = np.concatenate([*confidences, np.zeros(0)])
    hits = np.concatenate([*relevant, np.zeros(0, bool)])
    answered = [place for place, of_query in enumerate(confidences) if len(of_query)]
    first = np.array([confidences[place][0] for place in answered])
    first_hits = np.array([relevant[place][0] for place in answered], bool)
    return Reliability(
        queries=len(confidences),
        error=100.0 * calibration_error(every, hits),
        first_error=100.0 * calibration_error(first, first_hits),
        bins=bins_of(every, hits),
        answered={
            percent: 100.0 * answered_at(first, first_hits, percent / 100) / len(confidences)
            for percent in PRECISIONS
            if confidences
        },
        threshold=keeping(first[first_hits], KEPT / 100),
    )


def bins_of(confidences: Doubles, relevant: Bools) -> list[Bin]:
    """Sort keywords [n] into tenths of confidence; empty tenths are left out."""
    tenths = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
    return [
        Bin(
            low=tenth / BINS,
            keywords=int(within.sum()),
            confidence=float(confidences[within].mean()),
            relevant=float(relevant[within].mean()),
        )
        for tenth in range(BINS)
        if (within := tenths == tenth).any()
    ]


def calibration_error(confidences: Doubles, relevant: Bools) -> float:
    """Return the expected calibration error of keywords [n], from 0 to 1."""
    gaps = (
        one.keywords * abs(one.confidence - one.relevant) for one in bins_of(confidences, relevant)
    )
    return sum(gaps) / max(1, len(confidences))


def answered_at(confidences: Doubles, relevant: Bools, precision: float) -> int:
    """Return the most first keywords [n], the surest first, of which this share is relevant.

    Keywords of equal confidence are answered together.
    """
    order = np.argsort(-confidences, kind="stable")
    ordered = confidences[order]
    shares = np.cumsum(relevant[order]) / np.arange(1, len(order) + 1)
    last = np.append(ordered[1:] < ordered[:-1], True) if len(order) else np.zeros(0, bool)
    return int(np.flatnonzero((shares >= precision) & last).max(initial=-1)) + 1


def keeping(confidences: Doubles, share: float) -> float:
    """Return the greatest threshold that keeps a share of confidences [n]; 0 if there are none."""
    if not len(confidences):
        return 0.0
    lost = int((1.0 - share) * len(confidences))
    return float(np.sort(confidences)[lost])
