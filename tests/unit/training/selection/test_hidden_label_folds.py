"""Labels are hidden from training to choose the settings of novel labels."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.errors import InvalidConfig
from tests.support.tiny.training import tiny_dataset
from training.loop.training_data import training_pairs
from training.recipes import recipe
from training.selection.validation import hidden_labels


def test_a_share_of_the_labels_that_have_clicks_is_drawn() -> None:
    dataset = tiny_dataset()
    hidden = hidden_labels(dataset, share=0.25, seed=0)
    assert len(hidden) == 4
    assert hidden.tolist() == sorted(set(hidden.tolist()))
    assert np.array_equal(hidden, hidden_labels(dataset, share=0.25, seed=0))
    assert not np.array_equal(hidden, hidden_labels(dataset, share=0.25, seed=1))
    assert len(hidden_labels(dataset, share=0.0, seed=0)) == 0


def test_their_clicks_count_for_nothing() -> None:
    dataset, hidden = tiny_dataset(), np.array([2, 5])
    pairs = training_pairs(dataset, hidden)
    everything = training_pairs(dataset, np.zeros(0, np.int64))
    assert not set(pairs.drawable.indices.tolist()) & {2, 5}
    left = everything.drawable.nnz - pairs.drawable.nnz
    clicks = dataset.train.labels_of[:, hidden].nnz
    assert left == clicks > 0
    assert pairs.filtered[:, hidden].nnz == clicks, "neither for nor against"
    others = np.setdiff1d(np.arange(len(dataset.labels)), hidden)
    assert pairs.filtered[:, others].nnz == 0
    assert np.array_equal(
        pairs.drawable[:, others].toarray(), everything.drawable[:, others].toarray()
    )


def test_what_was_filtered_stays_so() -> None:
    dataset = tiny_dataset()
    filtered = csr_matrix(dataset.train.filtered.shape, dtype=bool).tolil()
    filtered[0, 7] = True
    train = replace(dataset.train, filtered=csr_matrix(filtered))
    assert training_pairs(replace(dataset, train=train), np.array([2])).filtered[0, 7]


@pytest.mark.parametrize("share", ["-0.1", "0.6"])
def test_a_share_out_of_range_is_named(share: str) -> None:
    with pytest.raises(InvalidConfig, match=r"validation\.labels"):
        recipe.load("irene-moby", [f"validation.labels={share}"])
