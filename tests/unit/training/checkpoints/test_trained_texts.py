"""A checkpoint's record of trained and held-out rows, including those of its ancestors."""

from pathlib import Path

import numpy as np
import pytest

from service.core.errors import InvalidData
from training.checkpoints.trained_texts import FILE, TrainedTexts, read, write

TEXTS = ("tent", "boots", "lamp", "stove", "rope")


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
    assert read(tmp_path) is None
    first = TrainedTexts().after(TEXTS, trained=rows(0), held_out=rows())
    record = first.after(TEXTS, trained=rows(1, 2), held_out=rows(3))
    write(record, tmp_path)
    again = read(tmp_path)
    assert again is not None
    assert np.array_equal(again.before, record.before) and np.array_equal(again.own, record.own)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(InvalidData, match=r"trained_texts\.npz: is not what `train` writes"):
        read(tmp_path)
