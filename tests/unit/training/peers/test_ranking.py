"""Answers of libraries as arrays of labels."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from tests.support.tiny.training import tiny_dataset
from training.peers.ranking import Ranking, padded, ranked_scores


def test_short_rows_end_with_nothing_and_long_ones_are_cut() -> None:
    assert padded([[3, 1], [], [2, 0, 1, 4]], top_k=3).tolist() == [
        [3, 1, -1],
        [-1, -1, -1],
        [2, 0, 1],
    ]


def test_scores_are_ranked_with_ties_by_column() -> None:
    scores = csr_matrix(np.array([[0.1, 0.9, 0.0, 0.9], [0.0, 0.0, -0.5, 0.0]]))

    assert ranked_scores(scores, top_k=3).tolist() == [[1, 3, 0], [2, -1, -1]]


def test_test_rows_are_asked_for_a_hundred_labels_and_as_many_as_are_filtered() -> None:
    dataset = tiny_dataset()
    filtered = dataset.test.filtered.tolil()
    filtered[0, [0, 1]] = True
    dataset = replace(dataset, test=replace(dataset.test, filtered=filtered.tocsr()))
    asked = []

    def rank(texts, top_k):
        asked.append((tuple(texts), top_k))
        return padded([[row % 16] for row in range(len(texts))], top_k=top_k)

    ranking = Ranking(method="by number", rank=rank, libraries={})
    [(result, rows)] = ranking.measure(dataset)

    assert asked == [(dataset.test.instances.texts, 102)]
    assert (result.method, result.chosen, rows.shape) == ("by number", True, (16, 3))
