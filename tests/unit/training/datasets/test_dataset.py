"""The parts of a data set agree; propensities and weights follow from its pairs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from napkinxc import metrics as napkinxc
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from tests.support.tiny.training import tiny_dataset
from training.datasets.dataset import Dataset, Propensity, Split, Texts
from training.datasets.lf_xmc.rows import SparseRows
from training.datasets.pair_weights import masses, relevance, vote_weights, with_relevance
from training.datasets.propensity import inverse_propensity, label_frequency

LABELS = Texts(uids=("a", "b", "c"), texts=("A", "B", "C"))


def split(rows: int = 2, labels: int = 3, **changes: csr_matrix) -> Split:
    built = Split(
        instances=Texts.named_by_text(f"q{row}" for row in range(rows)),
        labels_of=csr_matrix((rows, labels), dtype=np.float32),
        filtered=csr_matrix((rows, labels), dtype=bool),
    )
    return replace(built, **changes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"train": split(labels=2)}, "train.labels_of"),
        ({"test": split(filtered=csr_matrix((1, 3), dtype=bool))}, "test.filtered"),
        ({"label_metadata": csr_matrix((3, 1))}, "label_metadata"),
        ({"metadata": LABELS}, "train.metadata_of"),
        ({"fields": ("body",)}, "fields"),
    ],
)
def test_parts_that_disagree(change: dict, field: str) -> None:
    parts = {"name": "x", "train": split(), "test": split(), "labels": LABELS}
    with pytest.raises(InvalidInput) as caught:
        Dataset(**(parts | change))
    assert caught.value.field == field


def test_texts_need_as_many_uids() -> None:
    with pytest.raises(InvalidInput, match="1 uids but 2 texts"):
        Texts(uids=("a",), texts=("A", "B"))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_propensity_is_positive_and_finite(value: float) -> None:
    with pytest.raises(InvalidInput, match="propensity b must be a positive finite number"):
        Propensity(a=0.5, b=value)


def test_sparse_rows_sort_their_columns() -> None:
    rows = SparseRows()
    rows.append([2, 0], [0.5, 4.0])
    rows.append([])
    rows.append([1])
    matrix = rows.matrix(3)
    assert matrix.toarray().tolist() == [[4.0, 0.0, 0.5], [0, 0, 0], [0, 1.0, 0]]
    assert matrix.indices.tolist() == [0, 2, 1]
    assert (matrix.dtype, matrix.indices.dtype, matrix.indptr.dtype) == ("f4", "i4", "i4")


def test_frequency_counts_rows_and_not_relevance() -> None:
    labels_of = csr_matrix(np.array([[0.5, 0], [7.0, 0]], dtype=np.float32))
    assert label_frequency(labels_of).tolist() == [2, 0]


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.4), (0.6, 2.6), (0.55, 1.5)])
def test_agrees_with_napkinxc(a: float, b: float) -> None:
    dense = (np.random.default_rng(0).random((40, 15)) < 0.2).astype(np.float32)
    dense[:, 0] = 0.0
    theirs = napkinxc.Jain_et_al_inverse_propensity(dense, A=a, B=b)
    assert inverse_propensity(csr_matrix(dense), a=a, b=b) == pytest.approx(theirs)


def test_a_data_set_on_another_scale() -> None:
    dataset = tiny_dataset()
    dataset.train.labels_of.data *= 3.0
    assert with_relevance(dataset, None) is dataset
    assert with_relevance(dataset, "given") is dataset
    scaled = with_relevance(dataset, "log")
    assert scaled.train.labels_of.data == pytest.approx(math.log(4.0))
    assert set(dataset.train.labels_of.data.tolist()) == {3.0}
    assert scaled.test is dataset.test


def test_no_weight_becomes_zero_or_infinite() -> None:
    weights = csr_matrix((np.array([1e-300, 1e300]), ([0, 0], [0, 1])), shape=(1, 2))
    values = relevance(weights, scale="given")
    assert values.nnz == 2
    assert (values.data > 0).all() and np.isfinite(values.data).all()


def test_votes_weigh_one_in_the_mean_of_each_row() -> None:
    labels_of = csr_matrix([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 7.0, 0.0], [1.0, 1.0, 4.0]])
    weights = vote_weights(labels_of)
    assert weights is not None
    assert weights.dtype == np.float32
    assert weights.tolist() == [1.5, 0.5, 1.0, 0.5, 0.5, 2.0]


@pytest.mark.parametrize("rows", [[[1.0, 1.0], [0.0, 1.0]], [[0.3, 0.3], [0.0, 5.0]], [[0.0, 0.0]]])
def test_equally_relevant_labels_need_no_weights(rows: list[list[float]]) -> None:
    assert vote_weights(csr_matrix(rows)) is None


def test_masses_are_the_summed_weights_of_instances() -> None:
    clicks = csr_matrix(np.array([[30.0, 2.0], [0.0, 0.0], [0.0, 1e-60]]))
    clicks.eliminate_zeros()
    [known, unlabeled, decayed] = masses(clicks).tolist()  # type: ignore[union-attr]
    assert (known, unlabeled) == (32.0, 1.0)
    assert 0.0 < decayed < 1e-30
    assert masses(csr_matrix(np.ones((2, 2)))) is None
    assert masses(csr_matrix((2, 2))) is None
