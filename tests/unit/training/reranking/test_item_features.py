"""Overlaps of metadata items, computed by hand."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from training.reranking.item_features import Items, item_features
from training.reranking.pairs import Pairs


def test_rare_items_weigh_more_and_rows_tell_of_their_labels() -> None:
    items = Items(
        queries=csr_matrix([[1, 1, 0]]),
        labels=csr_matrix([[1, 1, 0], [1, 0, 1], [0, 0, 0]]),
        instances=csr_matrix([[1, 1, 0], [0, 0, 1]]),
    )
    labels_of = csr_matrix([[1, 0, 1], [0, 1, 0]])  # two rows, three labels
    candidates = Pairs(
        queries=np.zeros(3, np.int64), labels=np.arange(3), votes=np.ones(3), count=1
    )
    features = item_features(items, labels_of, candidates)
    both, one = np.log(4 / 3), np.log(4 / 2)
    assert features["items in common"] == pytest.approx([both + one, both, 0.0])
    assert features["items of the query in the label"][0] == pytest.approx(1.0)
    assert features["items of the label in the query"][1] == pytest.approx(both / (both + one))
    # The first row, which has the query's items, has the labels 0 and 2.
    assert features["items of the label's rows"] == pytest.approx([1.0, 0.0, 1.0])
    assert all(np.isfinite(values).all() for values in features.values())
