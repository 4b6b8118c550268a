"""Candidates keep the memory's order where scores are equal, and know their query's best."""

import numpy as np

from training.reranking.candidates import Candidates


def pairs() -> Candidates:
    """The first query has three candidates, the second none, the third two."""
    return Candidates(
        queries=np.array([0, 0, 0, 2, 2]),
        labels=np.array([7, 3, 5, 3, 1]),
        scores=np.array([0.5, 0.3, 0.2, 0.6, 0.4]),
        count=3,
    )


def test_places_within_each_query() -> None:
    assert pairs().starts.tolist() == [0, 3]
    assert pairs().counts.tolist() == [3, 2]
    assert pairs().ranks.tolist() == [0, 1, 2, 0, 1]


def test_values_beside_the_best_of_their_query() -> None:
    values = np.array([1.0, 4.0, 2.0, 0.0, 0.0])
    assert pairs().share_of_best(values).tolist() == [0.25, 1.0, 0.5, 0.0, 0.0]
    assert pairs().below_best(values).tolist() == [-3.0, 0.0, -2.0, 0.0, 0.0]


def test_new_scores_rank_anew_and_equal_ones_keep_the_order() -> None:
    ranked = pairs().ranked_by(np.array([0.0, 1.0, 1.0, 2.0, 2.0]), top_k=2)
    assert ranked.tolist() == [[3, 5], [-1, -1], [3, 1]]
    longer = pairs().ranked_by(pairs().scores, top_k=4)
    assert longer.tolist() == [[7, 3, 5, -1], [-1] * 4, [3, 1, -1, -1]]


def test_a_part_of_the_pairs() -> None:
    part = pairs().only(np.array([1, 2, 4]))
    assert part.labels.tolist() == [3, 5, 1] and part.counts.tolist() == [2, 1]
