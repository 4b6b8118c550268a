"""Hard negatives, found with each kind of index."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from training.batches.hard_negatives import mine_hard_negatives


def unit(rng: np.random.Generator, count: int) -> np.ndarray:
    vectors = rng.standard_normal((count, 8))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("library", ["exact", "faiss"])
def test_the_nearest_labels_that_are_not_ones_own(library: str) -> None:
    rng = np.random.default_rng(0)
    instances, labels = unit(rng, 40), unit(rng, 60)
    own, filtered = rng.random((40, 60)) < 0.2, rng.random((40, 60)) < 0.05
    mined = mine_hard_negatives(
        instances=instances,
        labels=labels,
        labels_of=csr_matrix(own),
        filtered=csr_matrix(filtered),
        top=5,
        library=library,
    )
    scores = instances @ labels.astype(np.float16).astype(np.float32).T
    scores[own | filtered] = -np.inf
    expected = np.argsort(-scores, axis=1)[:, :5]
    assert mined.shape == (40, 5)
    assert (np.sort(mined, axis=1) == np.sort(expected, axis=1)).mean() > 0.99
    assert not np.take_along_axis(own | filtered, mined.astype(np.int64), axis=1).any()


def test_fewer_labels_than_asked_for_leave_places_empty() -> None:
    rng = np.random.default_rng(0)
    mined = mine_hard_negatives(
        instances=unit(rng, 2),
        labels=unit(rng, 3),
        labels_of=csr_matrix(np.array([[1, 1, 0], [0, 0, 0]])),
        filtered=csr_matrix((2, 3), dtype=bool),
        top=4,
        library="exact",
    )
    assert mined[0].tolist() == [2, -1, -1, -1]
    assert sorted(mined[1].tolist()) == [-1, 0, 1, 2]
