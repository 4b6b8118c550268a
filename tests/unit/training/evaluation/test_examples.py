"""Example queries of a comparison: texts, right answers, verdicts, counts, and their file."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.errors import InvalidData
from tests.support.tiny.training import tiny_dataset
from training.checkpoints.choices import UNCHOSEN
from training.evaluation.answers import Answers
from training.evaluation.examples import FILE, examples_of, read_examples, write_examples

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


def test_texts_verdicts_and_counts() -> None:
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


def test_without_the_untrained_memory_nothing_is_judged() -> None:
    examples = examples_of(both()[0], None, tiny_dataset(), seed=0)
    assert examples.against is None
    assert {(query.verdict, query.untrained) for query in examples.queries} == {(None, None)}


def test_places_without_an_answer_are_left_out() -> None:
    few = answers([[0, -1, -1, -1, -1]] * 3)
    examples = examples_of(few, None, tiny_dataset(), seed=0)
    assert [len(query.answers) for query in examples.queries] == [1, 1, 1]


def test_they_come_back_as_they_were_written(tmp_path: Path) -> None:
    assert read_examples(tmp_path) is None
    examples = examples_of(*both(), tiny_dataset(), seed=4)
    write_examples(examples, tmp_path)
    assert read_examples(tmp_path) == examples


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("queries", 1, "verdict"), None, "examples.json: is not what `score` writes"),
        (("queries", 0, "verdict"), "drawn", "examples.json: is not what `score` writes"),
        (("against", "lost"), -1, "examples.json: is not what `score` writes"),
        (("version",), 9, "examples.json: version: must be 1"),
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


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(InvalidData, match=r"examples\.json: not valid JSON"):
        read_examples(tmp_path)
