"""Known queries: rows of the memory that are asked with their own row in it, weighted by clicks.

Other measures hide a query's own row, and count each query once. So they do not see whether a query
that is asked every day is answered as its clicks say. A row weighs as much as its labels together.
Its best label is the one with the largest weight; of equally large ones, each is right.

    first   sum of the weights of rows whose first label is the best / sum of all weights
    in ten  the same, if the best label is among the first ten

Of more than `most` rows, the half of `most` with the largest weights is asked, and each counts with
its weight. As many of the others are drawn, in proportion to their weights; together they count
with the weight of all others.

Shapes: N rows, m of them asked, L labels, k ranked labels per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Doubles, Rows
from training.evaluation.metrics import hits, unfiltered_first, unfiltered_positives

MOST_ROWS = 1_000
FIRST, IN_TEN = "known.first", "known.in_ten"  # names of the metrics
ASKED, OF, CLICKS = "known.asked", "known.of", "known.clicks"  # names of the sizes
TEN = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownQueries:
    """The rows that are asked, and which labels are right."""

    rows: Rows  # [m]
    shares: Doubles  # [m], of all clicks; their sum is 1
    best: csr_matrix  # [m, L] bool
    filtered: csr_matrix  # [m, L] bool
    of: int  # rows with a label that counts
    clicks: float  # the weight of these rows

    @classmethod
    def of_rows(
        cls, labels_of: csr_matrix, filtered: csr_matrix, *, most: int = MOST_ROWS
    ) -> KnownQueries:
        """Draw from rows with labels [N, L]; pairs in `filtered` [N, L] do not count."""
        counted = csr_matrix(labels_of.multiply(unfiltered_positives(labels_of, filtered)))
        counted.data = np.maximum(counted.data, 0.0)
        weights = np.asarray(counted.sum(axis=1), np.float64).ravel()  # [N]
        rows, shares = _drawn(weights, most)
        of_rows = csr_matrix(counted[rows])
        largest = of_rows.max(axis=1).toarray().ravel()
        best = of_rows.astype(bool)
        best.data = of_rows.data == np.repeat(largest, np.diff(of_rows.indptr))
        best.eliminate_zeros()
        return cls(
            rows=rows,
            shares=shares,
            best=best,
            filtered=csr_matrix(filtered[rows]).astype(bool),
            of=int(np.count_nonzero(weights)),
            clicks=float(weights.sum()),
        )

    def measure(self, ranked: Rows) -> dict[str, float]:
        """Return the metrics in percent of the ranked labels [m, k], -1 for none.

        Without rows, none is answered wrongly.
        """
        if not len(self.rows):
            return {FIRST: 100.0, IN_TEN: 100.0}
        places = unfiltered_first(ranked, self.filtered)[:, :TEN]
        labels = np.where(places < 0, -1, np.take_along_axis(ranked, places, axis=1))
        right = hits(labels, self.best)
        return {
            FIRST: 100.0 * min(1.0, float(self.shares @ right[:, 0])),
            IN_TEN: 100.0 * min(1.0, float(self.shares @ right.any(axis=1))),
        }

    @property
    def sizes(self) -> dict[str, float]:
        """How many rows are asked, of how many, and the clicks of all."""
        return {ASKED: float(len(self.rows)), OF: float(self.of), CLICKS: self.clicks}


def sentence(figures: Mapping[str, float]) -> str:
    """Describe the metrics and sizes of known queries."""
    return (
        f"known queries ({figures[ASKED]:,.0f} of {figures[OF]:,.0f}, {figures[CLICKS]:,.0f} clicks"
        f" in all): the most clicked keyword is first for {figures[FIRST]:.1f} % of the clicks,"
        f" among ten for {figures[IN_TEN]:.1f} %"
    )


def _drawn(weights: Doubles, most: int) -> tuple[Rows, Doubles]:
    """Draw rows [m] by their weights [N]; return their numbers, and their shares of all clicks."""
    rows, chance = np.flatnonzero(weights), np.random.default_rng(0)
    if len(rows) > most:
        # Rows of equal weight are taken in random order: the order of the table says nothing.
        ordered = chance.permutation(rows)
        ordered = ordered[np.argsort(-weights[ordered], kind="stable")]
        first, others = np.split(ordered, [most // 2])
        left = weights[others].sum()
        drawn = chance.choice(others, most - len(first), replace=False, p=weights[others] / left)
        rows = np.concatenate([first, drawn])
        clicks = np.concatenate([weights[first], np.full(len(drawn), left / len(drawn))])
    else:
        clicks = weights[rows]
    order = np.argsort(rows)
    return rows[order], clicks[order] / max(clicks.sum(), np.finfo(np.float64).tiny)
