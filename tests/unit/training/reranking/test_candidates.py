"""Candidate pairs have ranks, and are ranked again like in the service: ties by label id."""

import numpy as np
from scipy.sparse import csr_matrix

from service.core.prediction.many_queries import LabelOrder, RankedLabels
from training.reranking.candidates import Pairs, entries, pairs_of

BY_ID = LabelOrder.of(["h", "g", "f", "e", "d", "c", "b", "a"])  # column 0 has the last id


def pairs() -> Pairs:
    """Return pairs of three queries, which have three, no, and two labels."""
    return Pairs(
        queries=np.array([0, 0, 0, 2, 2]),
        labels=np.array([7, 3, 5, 3, 1]),
        votes=np.array([0.5, 0.3, 0.2, 0.6, 0.4]),
        count=3,
    )


def test_places_within_each_query() -> None:
    assert pairs().counts.tolist() == [3, 2]
    assert pairs().ranks.tolist() == [0, 1, 2, 0, 1]


def test_new_scores_rank_anew_and_equal_ones_by_id() -> None:
    ranked = pairs().ranked_by(np.array([0.0, 1.0, 1.0, 2.0, 2.0]), top_k=2, order=BY_ID)
    assert ranked.tolist() == [[5, 3], [-1, -1], [3, 1]]
    longer = pairs().ranked_by(pairs().votes, top_k=4, order=BY_ID)
    assert longer.tolist() == [[7, 3, 5, -1], [-1] * 4, [3, 1, -1, -1]]


def test_a_part_of_the_pairs() -> None:
    for part in (np.array([1, 2, 4]), np.array([False, True, True, False, True])):
        kept = pairs().only(part)
        assert kept.labels.tolist() == [3, 5, 1] and kept.counts.tolist() == [2, 1]


def test_the_labels_of_a_ranking() -> None:
    found = pairs_of(
        RankedLabels(
            labels=np.array([[7, 3, 5], [-1, -1, -1], [3, 1, -1]]),
            scores=np.array([[0.5, 0.3, 0.2], [0.0, 0.0, 0.0], [0.6, 0.4, 0.0]]),
        )
    )
    for name in ("queries", "labels", "votes"):
        assert getattr(found, name).tolist() == getattr(pairs(), name).tolist()
    assert found.count == 3


def test_entries_of_a_table() -> None:
    table = csr_matrix(([2.0, 3.0], ([0, 2], [3, 1])), shape=(3, 8))
    assert entries(table, pairs()).tolist() == [0.0, 2.0, 0.0, 0.0, 3.0]
