"""A memory's first answers without filtered pairs, their comparison, and examples of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from tests.support.tiny.training import tiny_dataset
from training.checkpoints.choices import UNCHOSEN
from training.datasets.dataset import Dataset
from training.evaluation import answers as module
from training.evaluation.answers import (
    TOP,
    Answers,
    best_answers,
    drawn_rows,
    read_untrained,
    verdicts,
    write_untrained,
)
from training.evaluation.examples import FILE, examples_of, read_examples, write_examples
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
    nothing, train = np.zeros((len(dataset.train), labels)), dataset.train
    return OfflineMemory.of(
        nothing, np.eye(labels), labels_of=train.labels_of, texts=dataset.labels
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


def test_filtered_labels_are_no_answers_and_right_is_what_the_test_row_has() -> None:
    dataset = tiny_dataset()
    found, truth = answered(dataset), dataset.test.labels_of.toarray()
    assert found.labels.tolist() == [[0, 1, 2, 3, 4]] * 16
    assert found.right(dataset.test).tolist() == (truth[found.rows][:, :TOP] > 0).tolist()
    filtered = dataset.test.filtered.tolil()
    filtered[:, 1] = True
    changed = replace(dataset, test=replace(dataset.test, filtered=csr_matrix(filtered)))
    found = answered(changed)
    assert found.labels.tolist() == [[0, 2, 3, 4, 5]] * len(found.rows)
    assert np.all(np.diff(found.scores, axis=1) <= 0)


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


def test_answers_come_back_for_the_same_data_and_a_damaged_file_is_named(tmp_path: Path) -> None:
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
    path = tmp_path / module.FILE
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidData, match=r"untrained\.safetensors: is damaged; remove it"):
        read_untrained(tmp_path, dataset)


ROWS = np.array([7, 2, 11])


def answers(labels: list[list[int]], encoder: str = "ours") -> Answers:
    return Answers(
        encoder=encoder,
        choices=UNCHOSEN,
        rows=ROWS,
        labels=np.array(labels, np.int32),
        scores=np.tile(np.linspace(0.5, 0.1, 5, dtype=np.float32), (3, 1)),
    )


def two_right(row: int) -> list[int]:
    return np.flatnonzero(tiny_dataset().test.labels_of.toarray()[row]).tolist()


def wrong(row: int) -> list[int]:
    return [label for label in range(16) if label not in two_right(row)]


def both() -> tuple[Answers, Answers]:
    """In rows 7, 2 and 11, ours has two, no and one right answer; the other memory has one each."""
    ours = [two_right(7) + wrong(7)[:3], wrong(2)[:5], [two_right(11)[0], *wrong(11)[:4]]]
    other = [[two_right(row)[0], *wrong(row)[:4]] for row in ROWS.tolist()]
    return answers(ours), answers(other, "base")


def test_texts_verdicts_and_counts_come_back_as_written(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    examples = examples_of(*both(), dataset, seed=4)
    assert [query.verdict for query in examples.queries] == ["won", "lost", "same"]
    first = examples.queries[0]
    assert first.query == dataset.test.instances.texts[7]
    assert sorted(first.expected) == sorted(first.query.split())
    assert [answer.right for answer in first.answers] == [True, True, False, False, False]
    assert [answer.text for answer in first.answers[:2]] == list(first.expected)
    assert first.untrained is not None and [a.right for a in first.untrained][:2] == [True, False]
    against = examples.against
    assert against is not None
    assert (against.encoder, against.won, against.lost, against.same) == ("base", 1, 1, 1)
    assert against.rows == 3
    assert read_examples(tmp_path) is None
    write_examples(examples, tmp_path)
    assert read_examples(tmp_path) == examples


def test_nothing_is_judged_without_the_untrained_memory_nor_shown_without_an_answer() -> None:
    few = answers([[0, -1, -1, -1, -1]] * 3)
    examples = examples_of(few, None, tiny_dataset(), seed=0)
    assert examples.against is None
    assert {(query.verdict, query.untrained) for query in examples.queries} == {(None, None)}
    assert [len(query.answers) for query in examples.queries] == [1, 1, 1]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("queries", 1, "verdict"), None, "examples.json: is not what `score` writes"),
        (("queries", 0, "verdict"), "drawn", "queries.0.verdict: is not what `score` writes"),
        (("against", "lost"), -1, "examples.json: against.lost: is not what `score` writes"),
        (("format",), "else", "examples.json: format: must be 'keymatch-examples'"),
    ],
)
def test_damage_is_named(
    place: tuple[str | int, ...], value: object, message: str, tmp_path: Path
) -> None:
    write_examples(examples_of(*both(), tiny_dataset(), seed=0), tmp_path)
    document = part = orjson.loads((tmp_path / FILE).read_bytes())
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / FILE).write_bytes(orjson.dumps(document))
    with pytest.raises(InvalidData) as raised:
        read_examples(tmp_path)
    assert message in str(raised.value)
