"""Batches: which labels are drawn, and that only true negatives act as negatives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from training.batches.batch import Batch, BatchSettings, draw_batch, without_common_label
from training.datasets.training_pairs import TrainingPairs

LABELS = 7
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


def test_rows_without_a_drawable_label_do_not_train() -> None:
    assert PAIRS.trainable().tolist() == [0, 1, 2]


def test_a_filtered_positive_is_neither_drawn_nor_a_negative() -> None:
    batch, again = draw([0, 1, 2], pool="all"), draw([0, 1, 2], pool="all")
    assert (batch.sampled == again.sampled).all()
    assert batch.sampled[0].tolist() == [False, True] + 5 * [False]
    assert not batch.positives[0, 0]
    assert not batch.negatives[0, 0]
    assert not batch.negatives[2, 4]


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


def test_the_pool_holds_each_label_once_in_order() -> None:
    batch = draw([0, 1, 2], positives=2)
    assert batch.pool.tolist() == [1, 2, 3]
    assert batch.positives.tolist() == [
        [True, False, False],
        [True, True, False],
        [False, False, True],
    ]


def test_another_instances_draw_that_is_ones_own_positive_is_no_negative() -> None:
    batch = draw([0, 1], positives=2)  # instance 1 adds label 2; both have label 1
    assert batch.negatives.tolist() == [[False, True], [False, False]]


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
    if not len(rows):
        return
    batch = draw(rows.tolist(), seed, pairs=pairs, positives=positives, pool=pool)
    own, out = y[rows][:, batch.pool], filtered[rows][:, batch.pool]
    assert (batch.positives == (own & ~out)).all()
    assert (batch.negatives == ~(own | out)).all()
    assert (batch.sampled <= batch.positives).all()
    drawable = (y & ~filtered)[rows].sum(axis=1)
    assert (batch.sampled.sum(axis=1) == np.minimum(drawable, positives)).all()


def test_a_batch_of_one_has_nobody_to_contrast_with() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        BatchSettings(instances=1)
