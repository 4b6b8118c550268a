import math

import numpy as np
import pytest
from napkinxc import metrics as napkinxc
from scipy.sparse import csr_matrix

from training.datasets.propensity import inverse_propensity, label_frequency


def test_three_rows_by_hand() -> None:
    # N = 3; two rows have label 0, one has label 1, none has label 2.
    labels_of = csr_matrix(np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], dtype=np.float32))
    c = (math.log(3) - 1) * math.sqrt(1.4)
    expected = [1 + c / math.sqrt(2.4), 1 + c / math.sqrt(1.4), 1 + c / math.sqrt(0.4)]
    assert inverse_propensity(labels_of, a=0.5, b=0.4) == pytest.approx(expected)


def test_frequency_counts_rows_and_not_relevance() -> None:
    labels_of = csr_matrix(np.array([[0.5, 0], [7.0, 0]], dtype=np.float32))
    assert label_frequency(labels_of).tolist() == [2, 0]


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.4), (0.6, 2.6), (0.55, 1.5)])
def test_agrees_with_napkinxc(a: float, b: float) -> None:
    dense = (np.random.default_rng(0).random((40, 15)) < 0.2).astype(np.float32)
    theirs = napkinxc.Jain_et_al_inverse_propensity(dense, A=a, B=b)
    assert inverse_propensity(csr_matrix(dense), a=a, b=b) == pytest.approx(theirs)
