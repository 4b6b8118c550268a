"""What differs between two bundles' answers to the same queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from service.comparison.measures import (
    PairedTest,
    Ranking,
    metrics_of,
    overlaps,
    paired_test,
    rank_changes,
)
from service.comparison.query_labels import KnownLabels

SHOWN = 20  # queries that change most


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two bundles give the same keywords, means over all queries.

    `overlaps` are by depth; `moved` is the mean distance, in places, that a keyword of both moved.
    """

    queries: int
    unchanged: int  # queries with the same keywords in the same order
    overlaps: Mapping[int, float]
    moved: float
    up: int  # keywords of both that moved towards the top
    down: int
    new: int  # keywords that only B has
    gone: int


@dataclass(frozen=True, kw_only=True)
class ChangedQuery:
    """A query, both rankings and its known labels."""

    query: str
    left: Ranking
    right: Ranking
    known: frozenset[str]
    agreement: float  # the average overlap


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that the page shows; `quality` is empty without known labels."""

    names: tuple[str, str]
    k: int
    agreement: Agreement
    judged: int  # queries with known labels
    quality: Mapping[str, PairedTest]
    changed: Sequence[ChangedQuery]


def compare(
    names: tuple[str, str],
    left: Mapping[str, Ranking],
    right: Mapping[str, Ranking],
    known: KnownLabels,
    *,
    k: int,
) -> Comparison:
    """Compare rankings of at most k keywords by query, in the order of the queries."""
    ours, theirs = metrics_of(left, known, k), metrics_of(right, known, k)
    judged = sum(1 for labels in known.values() if labels)
    return Comparison(
        names=names,
        k=k,
        agreement=_agreement(left, right, k=k),
        judged=judged,
        quality={name: paired_test(ours[name], theirs[name]) for name in ours} if judged else {},
        changed=_most_changed(left, right, known, k=k),
    )


def _agreement(left: Mapping[str, Ranking], right: Mapping[str, Ranking], *, k: int) -> Agreement:
    pairs = [(ranking, right[query]) for query, ranking in left.items()]
    moves = [rank_changes(*pair) for pair in pairs]
    shares = [overlaps(*pair, k) for pair in pairs]
    steps = [step for of_query in moves for step in of_query.values()]
    return Agreement(
        queries=len(pairs),
        unchanged=sum(ids(ours) == ids(theirs) for ours, theirs in pairs),
        overlaps={depth: fmean(each[depth - 1] for each in shares) for depth in (1, 5, k)},
        moved=fmean(map(abs, steps)) if steps else 0.0,
        up=sum(step > 0 for step in steps),
        down=sum(step < 0 for step in steps),
        new=sum(len(theirs) for _, theirs in pairs) - len(steps),
        gone=sum(len(ours) for ours, _ in pairs) - len(steps),
    )


def ids(ranking: Ranking) -> list[str]:
    """The label ids of a ranking, the best first."""
    return [keyword.id for keyword in ranking]


def _most_changed(
    left: Mapping[str, Ranking],
    right: Mapping[str, Ranking],
    known: KnownLabels,
    *,
    k: int,
) -> list[ChangedQuery]:
    """The `SHOWN` queries whose rankings agree least, of equal ones the first of the file."""
    agreements = {query: fmean(overlaps(left[query], right[query], k)) for query in left}
    changed = [query for query in left if ids(left[query]) != ids(right[query])]
    return [
        ChangedQuery(
            query=query,
            left=left[query],
            right=right[query],
            known=frozenset(known[query]),
            agreement=agreements[query],
        )
        for query in sorted(changed, key=agreements.__getitem__)[:SHOWN]
    ]
