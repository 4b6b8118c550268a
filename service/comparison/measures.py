"""How far two rankings agree, how good each is, and whether a difference may be chance.

Shapes: n queries, k keywords a ranking at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.core.types import Doubles, Keyword

DRAWS = 10_000  # of the randomisation test and of the bootstrap
CONFIDENCE = 95  # percent, of the interval
_SEED = 0

Ranking = Sequence[Keyword]  # the best first


def overlaps(left: Ranking, right: Ranking, depth: int) -> list[float]:
    """Overlap@1 to overlap@depth: which share of the first places' labels both have, by id.

    1 while neither has any keyword. Their mean is the average overlap, in which the first places
    count most.
    """
    ours: set[str] = set()
    theirs: set[str] = set()
    shared, shares = 0, []
    for place in range(depth):
        if place < len(left):
            shared += left[place].id in theirs
            ours.add(left[place].id)
        if place < len(right):
            shared += right[place].id in ours
            theirs.add(right[place].id)
        longest = max(len(ours), len(theirs))
        shares.append(shared / longest if longest else 1.0)
    return shares


def rank_changes(left: Ranking, right: Ranking) -> dict[str, int]:
    """By how many places each label of both rankings moved; positive: it is nearer to the top."""
    ranks = {keyword.id: rank for rank, keyword in enumerate(left)}
    return {
        keyword.id: ranks[keyword.id] - rank
        for rank, keyword in enumerate(right)
        if keyword.id in ranks
    }


def is_known(keyword: Keyword, known: Collection[str]) -> bool:
    """Whether a keyword is among known labels, which are given by id or text."""
    return keyword.id in known or keyword.text in known


def precision(ranking: Ranking, known: Collection[str], depth: int) -> float:
    """P@depth: the share of the first `depth` places that hold a known label."""
    return sum(is_known(keyword, known) for keyword in ranking[:depth]) / depth


def recall(ranking: Ranking, known: Collection[str], depth: int) -> float:
    """R@depth: the share of the known labels that are among the first `depth` keywords."""
    shown = {name for keyword in ranking[:depth] for name in (keyword.id, keyword.text)}
    return sum(label in shown for label in known) / len(known)


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """A metric of both sides over the same queries.

    `low` and `high` bound the difference of the means (right less left) by a paired bootstrap, `p`
    is the two-sided value of the paired randomisation test.
    """

    left: float
    right: float
    low: float
    high: float
    p: float
    wins: int
    losses: int
    ties: int

    @property
    def difference(self) -> float:
        """Right less left."""
        return self.right - self.left


def paired_test(left: Doubles, right: Doubles) -> PairedTest:
    """Test whether [n] and [n] differ in their means.

    Randomisation: if both were equally good, each query's difference could as well have the other
    sign. p is the share of `DRAWS` random choices of signs whose mean differs from 0 by at least as
    much, the observed one counted too. Both draw for all queries of equal difference at once.
    """
    generator = np.random.default_rng(_SEED)
    differences = np.round(right - left, 12)
    mean, n = differences.mean(), len(differences)
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    positive = generator.binomial(counts, 0.5, size=(DRAWS, len(sizes)))
    flipped = (2 * positive - counts) @ sizes / n  # [DRAWS], means under random signs
    as_large = np.count_nonzero(np.abs(flipped) >= abs(mean) - 1e-12)
    values, counts = np.unique(differences, return_counts=True)
    resampled = generator.multinomial(n, counts / n, size=DRAWS) @ values / n
    outside = (100 - CONFIDENCE) / 2
    low, high = np.percentile(resampled, [outside, 100 - outside])
    return PairedTest(
        left=float(left.mean()),
        right=float(right.mean()),
        low=float(low),
        high=float(high),
        p=float((1 + as_large) / (1 + DRAWS)),
        wins=int(np.count_nonzero(differences > 0)),
        losses=int(np.count_nonzero(differences < 0)),
        ties=int(np.count_nonzero(differences == 0)),
    )


def metrics_of(
    rankings: Mapping[str, Ranking], known: Mapping[str, Collection[str]], k: int
) -> dict[str, Doubles]:
    """P@1, P@5 and R@k of each query that has known labels, [n] each."""
    judged = [(rankings[query], set(labels)) for query, labels in known.items() if labels]
    return {
        "P@1": np.array([precision(ranking, labels, 1) for ranking, labels in judged]),
        "P@5": np.array([precision(ranking, labels, 5) for ranking, labels in judged]),
        f"R@{k}": np.array([recall(ranking, labels, k) for ranking, labels in judged]),
    }
