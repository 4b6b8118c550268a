"""What peers may learn from: filtered pairs and rows without labels are left out."""

from dataclasses import replace

import pytest
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from training.datasets.dataset import Dataset, Split, Texts
from training.peers.training_data import peer_training_data

LABELS = Texts(uids=("a", "b", "c"), texts=("A", "B", "C"))


def split(labels_of: list[list[float]], filtered: list[list[int]]) -> Split:
    names = tuple(f"row {row}" for row in range(len(labels_of)))
    return Split(
        instances=Texts(uids=names, texts=names),
        labels_of=csr_matrix(labels_of, dtype="f4"),
        filtered=csr_matrix(filtered, dtype=bool),
    )


def test_filtered_pairs_and_rows_without_labels_do_not_train() -> None:
    train = split(
        [[2.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [[0, 1, 1], [1, 0, 0], [0, 0, 0]]
    )
    found = peer_training_data(Dataset(name="x", train=train, test=train, labels=LABELS))

    assert found.texts == ("row 0", "row 2")
    assert found.labels_of.toarray().tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert found.labels_of.dtype == "f4"
    assert found.label_texts == ("A", "B", "C")


def test_the_test_split_is_not_seen() -> None:
    train = split([[1.0, 0.0, 0.0]], [[0, 0, 0]])
    test = split([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [[0, 0, 0], [0, 0, 0]])
    dataset = Dataset(name="x", train=train, test=test, labels=LABELS)
    other = replace(dataset, test=split([[0.0, 0.0, 1.0]], [[0, 0, 0]]))

    assert peer_training_data(dataset).texts == peer_training_data(other).texts
    assert (peer_training_data(dataset).labels_of != peer_training_data(other).labels_of).nnz == 0


def test_nothing_to_learn_from_is_an_error() -> None:
    train = split([[1.0, 0.0, 0.0]], [[1, 0, 0]])
    with pytest.raises(InvalidInput, match="no training row has a label that counts"):
        peer_training_data(Dataset(name="x", train=train, test=train, labels=LABELS))
