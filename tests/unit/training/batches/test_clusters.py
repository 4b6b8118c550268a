"""Clustering by balanced 2-means."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.batches.clusters import balanced_clusters, balanced_halves


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_two_groups_fall_apart() -> None:
    rng = np.random.default_rng(0)
    near = np.array([[1.0, 0, 0, 0]]) + 0.1 * rng.standard_normal((20, 4))
    far = np.array([[0, 0, 1.0, 0]]) + 0.1 * rng.standard_normal((20, 4))
    vectors = unit(np.concatenate([near, far])[(order := rng.permutation(40))])
    left = balanced_halves(vectors, rng=rng)
    assert len(set(zip(left.tolist(), (order < 20).tolist(), strict=True))) == 2


@given(count=st.integers(1, 200), size=st.integers(2, 32), seed=st.integers(0, 99))
def test_every_vector_lies_in_one_cluster_of_at_most_the_size(
    count: int, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors = unit(rng.standard_normal((count, 5)))
    clusters = balanced_clusters(vectors, size=size, rng=rng)
    assert sorted(np.concatenate(clusters).tolist()) == list(range(count))
    assert max(len(cluster) for cluster in clusters) <= size
    assert min(len(cluster) for cluster in clusters) >= min(count, (size + 1) // 2)


def test_equal_vectors_are_cut_all_the_same() -> None:
    vectors = np.ones((9, 3), np.float32) / np.sqrt(3, dtype=np.float32)
    clusters = balanced_clusters(vectors, size=4, rng=np.random.default_rng(0))
    assert sorted(len(cluster) for cluster in clusters) == [2, 3, 4]
