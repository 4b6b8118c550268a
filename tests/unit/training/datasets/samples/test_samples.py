"""Rows of a sample become a data set; the table of samples lists all."""

from pathlib import Path

import pytest

from service.core.errors import InvalidInput
from training.datasets.dataset import Dataset, Split
from training.datasets.samples import SAMPLES, build, load_sample
from training.datasets.train_test_split import is_test

ROWS = [(f"row {number}", [f"label {number % 3}"]) for number in range(30)]


def built(*rows: tuple[str, list[str]]) -> Dataset:
    return build([*rows, *ROWS], name="n", source="s")


def pairs_of(dataset: Dataset) -> dict[str, set[str]]:
    def of(split: Split) -> dict[str, set[str]]:
        return {
            text: {dataset.labels.texts[label] for label in split.labels_of[row].indices}
            for row, text in enumerate(split.instances.texts)
        }

    return of(dataset.train) | of(dataset.test)


def test_equal_texts_are_one_row() -> None:
    dataset = built(("a  b", ["x"]), (" a b ", ["y ", "x"]), ("no label", []), ("", ["x"]))
    assert pairs_of(dataset) == {"a b": {"x", "y"}} | {text: set(found) for text, found in ROWS}
    assert (dataset.name, dataset.source) == ("n", "s")


def test_a_label_that_equals_the_text_is_filtered() -> None:
    rows = [("x", ["x", "y"]), ("label 1", ["label 1"])]
    dataset = built(*rows)
    assert pairs_of(dataset)["x"] == {"y"}
    assert "label 1" not in pairs_of(dataset)
    assert "x" not in dataset.labels.texts  # no row has it as a positive
    dataset = built(*rows, ("z", ["x"]))
    split = dataset.test if "x" in dataset.test.instances.texts else dataset.train
    row = split.instances.texts.index("x")
    assert [dataset.labels.texts[label] for label in split.filtered[row].indices] == ["x"]


def test_the_order_of_the_rows_does_not_matter() -> None:
    one, other = (build(rows, name="n", source="s") for rows in (ROWS, ROWS[::-1]))
    assert one.train.instances == other.train.instances
    assert one.labels == other.labels
    assert (one.train.labels_of != other.train.labels_of).nnz == 0


def test_the_split_is_that_of_data_pairs() -> None:
    dataset = built()
    for split, test in ((dataset.train, False), (dataset.test, True)):
        assert all(is_test(t, fraction=0.2, seed=0) == test for t in split.instances.texts)


def test_too_few_rows() -> None:
    with pytest.raises(InvalidInput, match="n: 1 rows are too few for a train and a test split"):
        build([("a", ["b"])], name="n", source="s")


def test_a_sample_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    path.write_text("".join(f"Description: text {n}\nTag: a::b, c::d\n\n" for n in range(30)))
    dataset = load_sample("debian-tags", path)
    assert (dataset.name, dataset.source) == ("debian-tags", SAMPLES["debian-tags"].source)
    assert len(dataset.train) + len(dataset.test) == 30
    assert dataset.labels.texts == ("a::b", "c::d")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x", "'x' is unknown; there are city-names, debian-depends"),
        ("debian-tags", "debian-tags needs --input: a Debian file Packages"),
    ],
)
def test_an_unknown_name_and_a_missing_source_are_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_sample(name)
