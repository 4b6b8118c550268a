"""A test row in the training split is named with file and line."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.core.errors import InvalidData
from tests.support.tiny.training import tiny_dataset
from training.datasets import lf_xmc
from training.datasets.dataset import Texts
from training.datasets.train_test_overlap import refuse_overlap


def test_it_names_both_rows(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    texts = list(dataset.train.instances.texts)
    texts[6] = dataset.test.instances.texts[2]
    train = replace(
        dataset.train,
        instances=Texts(uids=dataset.train.instances.uids, texts=tuple(texts)),
    )
    folder = tmp_path / "data"
    lf_xmc.write(replace(dataset, train=train), folder)

    with pytest.raises(InvalidData) as raised:
        refuse_overlap(lf_xmc.read(folder), folder)

    assert f"{folder / 'trn.json.gz'}:7: title: " in str(raised.value)
    assert "is also test row 3" in str(raised.value)


def test_none_is_fine(tmp_path: Path) -> None:
    refuse_overlap(tiny_dataset(), tmp_path)
