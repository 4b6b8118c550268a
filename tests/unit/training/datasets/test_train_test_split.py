"""The split by time; `test_pairs.py` tests the split by hash."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.core.errors import InvalidData
from tests.support.tiny.training import tiny_dataset
from training.datasets import lf_xmc
from training.datasets.dataset import Texts
from training.datasets.train_test_split import refuse_overlap, split_by_time


def test_no_row_of_train_is_newer_than_a_test_query() -> None:
    rng = np.random.default_rng(0)
    newest = rng.integers(0, 50, 200).astype(float)
    queries = [f"query {row}" for row in rng.permutation(200)]
    test = split_by_time(queries, newest, fraction=0.3)
    assert test.sum() == 60
    assert newest[~test].max() <= newest[test].min()


def test_equal_times_do_not_depend_on_the_order() -> None:
    queries = [f"query {row}" for row in range(9)]
    forward = split_by_time(queries, np.zeros(9), fraction=0.4)
    backward = split_by_time(queries[::-1], np.zeros(9), fraction=0.4)
    assert forward.tolist() == backward.tolist()[::-1]


@pytest.mark.parametrize("fraction", [0.0, 0.01])
def test_nothing_is_held_out(fraction: float) -> None:
    assert not split_by_time(["a", "b"], np.array([1.0, 2.0]), fraction=fraction).any()


def test_it_names_both_rows(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    texts = list(dataset.train.instances.texts)
    texts[6] = dataset.test.instances.texts[2]
    train = replace(
        dataset.train, instances=Texts(uids=dataset.train.instances.uids, texts=tuple(texts))
    )
    folder = tmp_path / "data"
    lf_xmc.write(replace(dataset, train=train), folder)
    with pytest.raises(InvalidData) as raised:
        refuse_overlap(lf_xmc.read(folder), folder)
    assert f"{folder / 'trn.json.gz'}:7: title: " in str(raised.value)
    assert "is also test row 3" in str(raised.value)


def test_none_is_fine(tmp_path: Path) -> None:
    refuse_overlap(tiny_dataset(), tmp_path)
