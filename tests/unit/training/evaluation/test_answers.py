"""A memory's first answers without filtered pairs, their comparison, and their file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from tests.support.tiny.training import tiny_dataset
from training.checkpoints.choices import UNCHOSEN
from training.datasets.dataset import Dataset
from training.evaluation import answers as module
from training.evaluation.answers import (
    FILE,
    TOP,
    Answers,
    best_answers,
    drawn_rows,
    read_untrained,
    verdicts,
    write_untrained,
)
from training.evaluation.prediction import OfflineMemory, retrieve

CHOICES = replace(UNCHOSEN, memorization=0.0, depth=8)


def of(*rows: str) -> np.ndarray:
    """Return which answers are right, written as "x"."""
    return np.array([[mark == "x" for mark in row] for row in rows])


def test_more_right_answers_win_and_of_as_many_those_that_stand_higher() -> None:
    ours = of("x....", "....x", ".xx..", "x....", "x...x", ".....")
    theirs = of(".....", "xx...", "..xx.", "x....", ".x.x.", ".....")
    assert verdicts(ours, theirs).tolist() == [1, -1, 1, 0, 0, 0]
    assert verdicts(theirs, ours).tolist() == [-1, 1, -1, 0, 0, 0]


def labels_alone(dataset: Dataset) -> OfflineMemory:
    """Return a memory in which the key of label l is the l-th unit vector."""
    labels = len(dataset.labels)
    return OfflineMemory(
        keys=np.concatenate([np.zeros((len(dataset.train), labels)), np.eye(labels)]).astype(
            np.float16
        ),
        labels_of=dataset.train.labels_of,
        label_ids=dataset.labels.uids,
    )


def answered(dataset: Dataset) -> Answers:
    """Return answers for queries that are nearest to label 0, then 1, 2, ..."""
    rows = drawn_rows(dataset.test, seed=3)
    labels = len(dataset.labels)
    queries = np.tile(np.arange(labels, 0, -1, dtype=np.float32), (len(rows), 1))
    memory = labels_alone(dataset)
    retrieved = retrieve(memory, queries / np.linalg.norm(queries[0]), depth=8)
    return best_answers(
        memory, retrieved.labels, dataset.test, rows, choices=CHOICES, encoder="axes"
    )


def test_filtered_labels_are_no_answers() -> None:
    dataset = tiny_dataset()
    assert answered(dataset).labels.tolist() == [[0, 1, 2, 3, 4]] * 16
    filtered = dataset.test.filtered.tolil()
    filtered[:, 1] = True
    changed = replace(dataset, test=replace(dataset.test, filtered=csr_matrix(filtered)))
    found = answered(changed)
    assert found.labels.tolist() == [[0, 2, 3, 4, 5]] * len(found.rows)
    assert np.all(np.diff(found.scores, axis=1) <= 0)


def test_right_is_what_the_test_row_has() -> None:
    dataset = tiny_dataset()
    found = answered(dataset)
    truth = dataset.test.labels_of.toarray()
    assert found.right(dataset.test).tolist() == (truth[found.rows][:, :TOP] > 0).tolist()


def test_rows_are_drawn_by_the_seed_among_those_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tiny_dataset()
    labels_of = dataset.test.labels_of.tolil()
    labels_of[5] = 0
    test = replace(dataset.test, labels_of=csr_matrix(labels_of))
    drawn = drawn_rows(test, seed=0)
    assert sorted(drawn.tolist()) == [row for row in range(16) if row != 5]
    assert drawn.tolist() == drawn_rows(test, seed=0).tolist() != drawn_rows(test, seed=1).tolist()
    monkeypatch.setattr(module, "MOST_ROWS", 4)
    assert drawn_rows(test, seed=0).tolist() == drawn[:4].tolist()


def test_answers_come_back_for_the_same_data_only(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    assert read_untrained(tmp_path, dataset) is None
    written = answered(dataset)
    write_untrained(written, dataset, tmp_path)
    read = read_untrained(tmp_path, dataset)
    assert read is not None
    assert (read.encoder, read.choices) == ("axes", CHOICES)
    for name in ("rows", "labels", "scores"):
        assert np.array_equal(getattr(read, name), getattr(written, name))
    assert read_untrained(tmp_path, tiny_dataset(seed=1)) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    write_untrained(answered(dataset), dataset, tmp_path)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidData, match=r"untrained\.safetensors: is damaged; remove it"):
        read_untrained(tmp_path, dataset)
