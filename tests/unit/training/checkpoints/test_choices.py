"""A checkpoint's choices, and its record of trained and held-out rows, also of its ancestors'."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.errors import InvalidData
from training.checkpoints import trained_texts
from training.checkpoints.choices import CHOICES, Choices, read_choices, write_choices
from training.checkpoints.trained_texts import TrainedTexts

CHOSEN = Choices(system="rae", tau=0.05, memorization=0.7, depth=100)
TEXTS = ("tent", "boots", "lamp", "stove", "rope")


@pytest.mark.parametrize("relevance", [None, "given", "binary", "log"])
def test_choices_come_back(relevance: str | None, tmp_path: Path) -> None:
    choices = replace(CHOSEN, relevance=relevance)
    write_choices(tmp_path, choices)
    assert read_choices(tmp_path) == choices


def test_a_checkpoint_without_a_relevance_has_none(tmp_path: Path) -> None:
    older = {"system": "rae", "tau": 0.05, "memorization": 0.7, "depth": 100}
    (tmp_path / CHOICES).write_bytes(orjson.dumps(older))
    assert read_choices(tmp_path) == CHOSEN
    write_choices(tmp_path, CHOSEN)
    assert orjson.loads((tmp_path / CHOICES).read_bytes()) == older
    assert read_choices(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("relevance", "loud"), ("relevance", 1), ("tau", "warm"), ("depth", 1.5), ("more", 1)],
)
def test_damage_is_refused(field: str, value: object, tmp_path: Path) -> None:
    write_choices(tmp_path, CHOSEN)
    document = orjson.loads((tmp_path / CHOICES).read_bytes())
    (tmp_path / CHOICES).write_bytes(orjson.dumps({**document, field: value}))
    with pytest.raises(InvalidData, match=r"keymatch\.json: is not what `train` writes") as raised:
        read_choices(tmp_path)
    assert field in str(raised.value)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_rows_that_trained_are_seen_and_all_others_are_not() -> None:
    record = TrainedTexts().after(TEXTS, trained=rows(0, 1, 2), held_out=rows(3))
    assert record.unseen(TEXTS).tolist() == [False, False, False, True, True]
    assert record.unseen(("knife", "tent")).tolist() == [True, False]
    assert record.unseen_before(TEXTS).all()


def test_a_child_has_seen_what_its_parent_has() -> None:
    parent = TrainedTexts().after(TEXTS, trained=rows(0, 1), held_out=rows(2))
    child = parent.after(TEXTS, trained=rows(1, 3), held_out=rows(2))
    assert child.unseen(TEXTS).tolist() == [False, False, True, False, True]
    assert child.unseen_before(TEXTS).tolist() == [False, False, True, True, True]


def test_a_text_that_is_held_out_as_well_counts_as_held_out() -> None:
    """Two rows may have the same text, one held out and one not."""
    texts = ("tent", "boots", "tent")
    record = TrainedTexts().after(texts, trained=rows(0, 1), held_out=rows(2))
    assert record.unseen(texts).tolist() == [True, False, True]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert trained_texts.read(tmp_path) is None
    first = TrainedTexts().after(TEXTS, trained=rows(0), held_out=rows())
    record = first.after(TEXTS, trained=rows(1, 2), held_out=rows(3))
    trained_texts.write(record, tmp_path)
    again = trained_texts.read(tmp_path)
    assert again is not None
    assert np.array_equal(again.before, record.before) and np.array_equal(again.own, record.own)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / trained_texts.FILE).write_bytes(content)
    with pytest.raises(InvalidData, match=r"trained_texts\.npz: is not what `train` writes"):
        trained_texts.read(tmp_path)
