"""Batches: their rows, the labels that are drawn for them, clusters and hard negatives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from training.batches.batch import Batch, BatchSettings, draw_batch, without_common_label
from training.batches.clusters import balanced_clusters, balanced_halves
from training.batches.hard_negatives import mine_hard_negatives
from training.batches.order import batch_rows, dropout_seed, step_rng, steps_per_epoch
from training.datasets.training_pairs import TrainingPairs

LABELS = 7
ROWS = np.arange(100, 123)
Y = np.array(
    [
        [1, 1, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
    ]
)
FILTERED = np.zeros_like(Y)
FILTERED[0, 0] = FILTERED[2, 4] = 1
PAIRS = TrainingPairs(labels_of=csr_matrix(Y), filtered=csr_matrix(FILTERED))


def draw(
    rows: list[int],
    seed: int = 0,
    mined: np.ndarray | None = None,
    pairs: TrainingPairs = PAIRS,
    **options,
) -> Batch:
    settings = BatchSettings(instances=max(2, len(rows)), **options)
    rng = np.random.default_rng(seed)
    return draw_batch(pairs, np.array(rows), settings=settings, hard_negatives=mined, rng=rng)


@pytest.mark.parametrize(
    ("sampling", "expected"), [("uniform", [1 / 3, 1 / 3, 1 / 3]), ("weighted", [0.1, 0.3, 0.6])]
)
def test_positives_are_drawn_alike_or_by_relevance(sampling: str, expected: list[float]) -> None:
    # The columns are unsorted, and the most relevant label is filtered.
    y = csr_matrix((np.array([6.0, 50.0, 1.0, 3.0]), [3, 1, 0, 2], [0, 4]), shape=(1, 4))
    filtered = csr_matrix((np.ones(1, bool), ([0], [1])), shape=(1, 4))
    pairs = TrainingPairs(labels_of=y, filtered=filtered)
    batch = draw([0] * 3000, pairs=pairs, sampling=sampling)
    assert batch.pool.tolist() == [0, 2, 3]
    assert batch.sampled.mean(axis=0) == pytest.approx(expected, abs=0.03)


def test_several_positives_are_drawn_once_each() -> None:
    pairs = TrainingPairs(
        labels_of=csr_matrix([[1e-40, 1.0, 1e38]]), filtered=csr_matrix((1, 3), dtype=bool)
    )
    batch = draw([0], pairs=pairs, sampling="weighted", positives=2)
    assert batch.pool.tolist() == [1, 2]


def test_instances_with_a_common_label_are_no_negatives_of_each_other() -> None:
    assert without_common_label(csr_matrix(Y[[0, 1, 2]])).tolist() == [
        [False, False, True],
        [False, False, True],
        [True, True, False],
    ]


def test_as_many_mined_labels_as_asked_for_join_the_pool() -> None:
    mined = np.full((4, 3), -1, np.int32)
    mined[0] = [3, 5, 6]
    batch = draw([0, 1], mined=mined, hard_negatives=2, positives=2)
    joined = set(batch.pool.tolist()) - {1, 2}
    assert len(joined) == 2
    assert joined < {3, 5, 6}
    assert batch.negatives[0, [batch.pool.tolist().index(label) for label in joined]].all()


@given(
    seed=st.integers(0, 1_000), positives=st.integers(1, 3), pool=st.sampled_from(["batch", "all"])
)
def test_masks_agree(seed: int, positives: int, pool: str) -> None:
    rng = np.random.default_rng(seed)
    y, filtered = rng.random((6, LABELS)) < 0.4, rng.random((6, LABELS)) < 0.1
    pairs = TrainingPairs(labels_of=csr_matrix(y), filtered=csr_matrix(filtered))
    rows = pairs.trainable()
    assert rows.tolist() == np.flatnonzero((y & ~filtered).any(axis=1)).tolist()
    if not len(rows):
        return
    options = {"pairs": pairs, "positives": positives, "pool": pool}
    batch = draw(rows.tolist(), seed, **options)
    assert (batch.sampled == draw(rows.tolist(), seed, **options).sampled).all()
    assert batch.pool.tolist() == sorted({*batch.pool.tolist()})
    assert batch.sampled.any(axis=0).all() or pool == "all"
    own, out = y[rows][:, batch.pool], filtered[rows][:, batch.pool]
    assert (batch.positives == (own & ~out)).all()
    assert (batch.negatives == ~(own | out)).all()
    assert (batch.sampled <= batch.positives).all()
    drawable = (y & ~filtered)[rows].sum(axis=1)
    assert (batch.sampled.sum(axis=1) == np.minimum(drawable, positives)).all()


def epoch(number: int, *, size: int, clusters: list[np.ndarray] | None = None) -> list[np.ndarray]:
    count = steps_per_epoch(len(ROWS), size)
    return [
        batch_rows(number * count + step, rows=ROWS, size=size, clusters=clusters, seed=1)
        for step in range(count)
    ]


@given(size=st.integers(2, 40), number=st.integers(0, 3))
def test_an_epoch_takes_no_row_twice(size: int, number: int) -> None:
    taken = np.concatenate(epoch(number, size=size))
    assert len(np.unique(taken)) == len(taken)
    assert len(taken) == (len(ROWS) if size > len(ROWS) else len(ROWS) // size * size)
    assert np.isin(taken, ROWS).all()


def test_epochs_and_steps_differ_and_repeat_with_the_seed() -> None:
    first, second = epoch(0, size=5), epoch(1, size=5)
    assert any((a != b).any() for a, b in zip(first, second, strict=True))
    assert all((a == b).all() for a, b in zip(first, epoch(0, size=5), strict=True))
    assert step_rng(0, 1).random() == step_rng(0, 1).random() != step_rng(0, 2).random()
    assert dropout_seed(0, 1, 0) != dropout_seed(0, 1, 1)


def test_clusters_stay_together() -> None:
    clusters = [np.arange(0, 6), np.arange(6, 12), np.arange(12, 18)]
    for batch in epoch(0, size=6, clusters=clusters)[:3]:
        assert len({(row - 100) // 6 for row in batch.tolist()}) == 1


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    return unit(rng.standard_normal((count, 8)))


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
    vectors = drawn(rng, count)
    clusters = balanced_clusters(vectors, size=size, rng=rng)
    assert sorted(np.concatenate(clusters).tolist()) == list(range(count))
    assert max(len(cluster) for cluster in clusters) <= size
    assert min(len(cluster) for cluster in clusters) >= min(count, (size + 1) // 2)


def test_equal_vectors_are_cut_all_the_same() -> None:
    vectors = np.ones((9, 3), np.float32) / np.sqrt(3, dtype=np.float32)
    clusters = balanced_clusters(vectors, size=4, rng=np.random.default_rng(0))
    assert sorted(len(cluster) for cluster in clusters) == [2, 3, 4]


@pytest.mark.parametrize("library", ["exact", "faiss"])
def test_the_nearest_labels_that_are_not_ones_own(library: str) -> None:
    rng = np.random.default_rng(0)
    instances, labels = drawn(rng, 40), drawn(rng, 60)
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
        instances=drawn(rng, 2),
        labels=drawn(rng, 3),
        labels_of=csr_matrix(np.array([[1, 1, 0], [0, 0, 0]])),
        filtered=csr_matrix((2, 3), dtype=bool),
        top=4,
        library="exact",
    )
    assert mined[0].tolist() == [2, -1, -1, -1]
    assert sorted(mined[1].tolist()) == [-1, 0, 1, 2]
