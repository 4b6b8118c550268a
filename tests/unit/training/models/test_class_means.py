"""Labels as the mean of their queries, by hand."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from training.models.class_means import class_means

LABELS_OF = csr_matrix(np.array([[2.0, 0, 0], [1, 1, 0]], np.float32))
INSTANCES = np.array([[1, 0], [0, 1]], np.float32)
TEXTS = np.array([[0, -1], [1, 0], [0.6, 0.8]], np.float32)


def test_queries_alone() -> None:
    means = class_means(LABELS_OF, INSTANCES, TEXTS, text_weight=0.0)
    assert means == pytest.approx(np.array([[0.5**0.5, 0.5**0.5], [0, 1], [0.6, 0.8]]))


def test_a_text_counts_as_queries_do() -> None:
    means = class_means(LABELS_OF, INSTANCES, TEXTS, text_weight=1.0)
    assert means == pytest.approx(np.array([[1, 0], [0.5**0.5, 0.5**0.5], [0.6, 0.8]]))
