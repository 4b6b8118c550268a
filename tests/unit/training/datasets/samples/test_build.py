from pathlib import Path

import pytest

from service.core.errors import InvalidData, InvalidInput, MissingExtra
from training.datasets.dataset import Dataset, Split
from training.datasets.samples.build import build, read_json
from training.datasets.train_test_split import is_test

ROWS = [(f"row {number}", [f"label {number % 3}"]) for number in range(30)]


def pairs_of(dataset: Dataset) -> dict[str, set[str]]:
    def of(split: Split) -> dict[str, set[str]]:
        return {
            text: {dataset.labels.texts[label] for label in split.labels_of[row].indices}
            for row, text in enumerate(split.instances.texts)
        }

    return of(dataset.train) | of(dataset.test)


def test_equal_texts_are_one_row() -> None:
    rows = [("a  b", ["x"]), (" a b ", ["y ", "x"]), ("no label", []), ("", ["x"]), *ROWS]
    dataset = build(rows, name="n", source="s")
    assert pairs_of(dataset) == {"a b": {"x", "y"}} | {text: set(found) for text, found in ROWS}
    assert (dataset.name, dataset.source) == ("n", "s")


def test_a_label_that_equals_the_text_is_filtered() -> None:
    rows = [*ROWS, ("x", ["x", "y"]), ("label 1", ["label 1"])]
    dataset = build(rows, name="n", source="s")
    assert pairs_of(dataset)["x"] == {"y"}
    assert "label 1" not in pairs_of(dataset)
    assert "x" not in dataset.labels.texts  # a positive of no row
    dataset = build([*rows, ("z", ["x"])], name="n", source="s")
    split = dataset.test if "x" in dataset.test.instances.texts else dataset.train
    row = split.instances.texts.index("x")
    assert [dataset.labels.texts[label] for label in split.filtered[row].indices] == ["x"]


def test_the_order_of_the_rows_does_not_matter() -> None:
    one, other = (build(rows, name="n", source="s") for rows in (ROWS, ROWS[::-1]))
    assert one.train.instances == other.train.instances
    assert one.labels == other.labels
    assert (one.train.labels_of != other.train.labels_of).nnz == 0


def test_the_split_is_that_of_data_pairs() -> None:
    dataset = build(ROWS, name="n", source="s")
    for split, test in ((dataset.train, False), (dataset.test, True)):
        assert all(is_test(t, fraction=0.2, seed=0) == test for t in split.instances.texts)


def test_too_few_rows() -> None:
    with pytest.raises(InvalidInput, match="n: 1 rows are too few for a train and a test split"):
        build([("a", ["b"])], name="n", source="s")


def test_read_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"b": 1}')
    assert read_json("none", "a.json", tmp_path) == {"b": 1}
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InvalidData, match=r"a\.json: is not JSON"):
        read_json("none", "a.json", tmp_path)
    with pytest.raises(InvalidData, match=r"b\.json: cannot be read: No such file"):
        read_json("none", "b.json", tmp_path)
    with pytest.raises(MissingExtra, match=r"no_such_package is not installed.*\[samples\]"):
        read_json("no_such_package", "a.json", None)
