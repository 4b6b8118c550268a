"""The recall of novel labels among all labels."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from training.lab.novel_evaluation import novel_recalls

SEEN = 3  # the first 3 of 8 labels
NONE_FILTERED = csr_matrix((3, 8), dtype=bool)
POSITIVES = csr_matrix(
    [
        [1, 0, 0, 1, 1, 0, 0, 0],  # one seen label, two novel ones
        [0, 1, 1, 0, 0, 0, 0, 0],  # only seen labels, so the row does not count
        [0, 0, 0, 0, 0, 0, 0, 1],
    ],
    dtype=bool,
)


def padded(*rows: list[int]) -> NDArray[np.int64]:
    """Return ranked labels [q, 100], filled up with -1 for "no answer"."""
    return np.array([row + [-1] * (100 - len(row)) for row in rows], np.int64)


def test_seen_labels_do_not_count() -> None:
    # Row 0's second novel label is sixth without seen labels; row 2's is not found.
    ranked = padded([0, 3, 1, 2, 5, 4], [1, 2, 0, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    found = novel_recalls(ranked, POSITIVES, NONE_FILTERED, seen=SEEN)
    assert found == pytest.approx({"novel_R@5": 25.0, "novel_R@30": 50.0, "novel_R@100": 50.0})
    assert POSITIVES.nnz == 6  # the argument is unchanged


def test_filtered_labels_move_later_ones_up() -> None:
    filtered = csr_matrix(([True], ([0], [1])), shape=(3, 8))
    ranked = padded([0, 3, 1, 2, 5, 4], [1, 2, 0, 3, 4, 5], [7, 1, 2, 3, 4, 5])
    found = novel_recalls(ranked, POSITIVES, filtered, seen=SEEN)
    assert found["novel_R@5"] == pytest.approx(100.0)


def test_without_novel_labels_there_is_no_recall() -> None:
    ranked = padded([0], [0], [0])
    found = novel_recalls(ranked, POSITIVES[[1, 1, 1]], NONE_FILTERED, seen=SEEN)
    assert all(np.isnan(value) for value in found.values())
