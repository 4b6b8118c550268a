"""Metadata columns of a table become items of queries and labels in the data set."""

from pathlib import Path
from typing import Any

import pytest
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData, InvalidInput
from service.core.files.lines import Rejects
from tests.support.tiny.tables import FORMATS, from_table, table, write_table
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Texts

HEADER = ["q", "k", "tags", "kind"]
ROWS = [
    ["red shoes", "shoes", "shop|  red   things ", "footwear"],
    ["boots", "winter boots", "", "footwear|winter"],
    ["red shoes", "boots", "sale|shop", ""],
    ["hat", "cap", " | |", ""],
]
COLUMNS: dict[str, Any] = {"query": "q", "label": "k", "test_fraction": 0}
BOTH: dict[str, Any] = {**COLUMNS, "metadata": ("tags",), "label_metadata": ("kind",)}


def items(texts: Texts, metadata_of: csr_matrix | None, dataset: Dataset) -> dict[str, list[str]]:
    """Map each text to its items."""
    assert metadata_of is not None and dataset.metadata is not None
    names = dataset.metadata.texts
    return {
        text: [names[column] for column in metadata_of[row].indices.tolist()]
        for row, text in enumerate(texts.texts)
    }


def of_queries(dataset: Dataset) -> dict[str, list[str]]:
    return items(dataset.train.instances, dataset.train.metadata_of, dataset)


def of_labels(dataset: Dataset) -> dict[str, list[str]]:
    return items(dataset.labels, dataset.label_metadata, dataset)


@pytest.mark.parametrize("ending", FORMATS)
def test_a_text_has_the_items_of_all_its_rows(tmp_path: Path, ending: str) -> None:
    dataset = from_table(write_table(tmp_path, ending, ROWS, HEADER), **BOTH)
    assert dataset.metadata is not None
    assert dataset.metadata.texts == ("shop", "red things", "footwear", "winter", "sale")
    assert of_queries(dataset) == {
        "red shoes": ["shop", "red things", "sale"],
        "boots": [],
        "hat": [],
    }
    assert of_labels(dataset) == {
        "shoes": ["footwear"],
        "winter boots": ["footwear", "winter"],
        "boots": [],
        "cap": [],
    }
    lf_xmc.write(dataset, tmp_path / "written")
    read = lf_xmc.read(tmp_path / "written")
    assert (of_queries(read), of_labels(read)) == (of_queries(dataset), of_labels(dataset))


def test_one_side_alone_and_several_columns(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    dataset = from_table(path, **COLUMNS, metadata=("tags", "kind"))
    assert of_queries(dataset)["red shoes"] == ["shop", "red things", "footwear", "sale"]
    assert of_labels(dataset) == {"shoes": [], "winter boots": [], "boots": [], "cap": []}
    assert from_table(path, **COLUMNS).metadata is None


def test_the_items_follow_their_query_into_its_split(tmp_path: Path) -> None:
    rows = [[f"query {row}", "label", f"item {row}", ""] for row in range(40)]
    path = write_table(tmp_path, "csv", rows, HEADER)
    dataset = from_table(path, **{**BOTH, "test_fraction": 0.5})
    for split in (dataset.train, dataset.test):
        found = items(split.instances, split.metadata_of, dataset)
        assert found == {text: [text.replace("query", "item")] for text in split.instances.texts}


def test_another_delimiter_and_lists(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", [["a", "b", "x|y, z", ""]], HEADER)
    dataset = from_table(path, **COLUMNS, metadata=("tags",), metadata_delimiter=", ")
    assert of_queries(dataset) == {"a": ["x|y", "z"]}
    listed = [["a", "b", ["x", "y|z", "", 7], None]]
    dataset = from_table(write_table(tmp_path, "jsonl", listed, HEADER), **BOTH)
    assert of_queries(dataset) == {"a": ["x", "y|z", "7"]}
    with pytest.raises(InvalidInput, match="one character or more"):
        from_table(path, **COLUMNS, metadata=("tags",), metadata_delimiter="")


def test_a_bad_cell_is_a_bad_row_and_links_nothing(tmp_path: Path) -> None:
    rejects = Rejects()
    rows = [["a", "b", [{"x": 1}], None], ["c", "d", True, None], ["e", "f", "fine", None]]
    path = write_table(tmp_path, "jsonl", rows, HEADER)
    read = table(path, **BOTH, on_bad=rejects)
    assert [str(row) for row in rejects.rows] == [
        "1: tags: must be a text, not dict",
        "2: tags: must be a text, not bool",
    ]
    assert of_queries(read.dataset) == {"e": ["fine"]}


def test_columns_without_any_item_are_an_error(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", [["a", "b", "", ""], ["c", "d", "|", ""]], HEADER)
    with pytest.raises(InvalidData, match="has no metadata in any row of tags, kind"):
        from_table(path, **BOTH)
    with pytest.raises(InvalidData, match=":1: colour: there is no such column"):
        from_table(path, **COLUMNS, metadata=("colour",))
