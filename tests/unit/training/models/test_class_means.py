"""Label vectors as the mean of their queries' vectors, checked by hand."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from training.models.class_means import class_means

LABELS_OF = csr_matrix(np.array([[2.0, 0, 0], [1, 1, 0]], np.float32))
INSTANCES = np.array([[1, 0], [0, 1]], np.float32)
TEXTS = np.array([[0, -1], [1, 0], [0.6, 0.8]], np.float32)


@pytest.mark.parametrize(
    ("text_weight", "expected"),
    [
        (0.0, [[0.5**0.5, 0.5**0.5], [0, 1], [0.6, 0.8]]),
        (1.0, [[1, 0], [0.5**0.5, 0.5**0.5], [0.6, 0.8]]),
    ],
)
def test_a_text_counts_as_queries_do(text_weight: float, expected: list[list[float]]) -> None:
    means = class_means(LABELS_OF, INSTANCES, TEXTS, text_weight=text_weight)
    assert means == pytest.approx(np.array(expected))
