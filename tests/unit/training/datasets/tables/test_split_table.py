"""A split as a table: what it holds, and that the service reads it."""

import csv
from pathlib import Path

import numpy as np
import orjson
import pytest
from scipy.sparse import csr_matrix

from service.comparison.query_labels import read_queries
from service.core.errors import InvalidInput
from service.settings import Limits
from tests.support.tiny.tables import relevance, table
from training.datasets.dataset import Split, Texts
from training.datasets.tables.split_table import write_table

LABELS = Texts(uids=("a", "b"), texts=('15" rim, used', "boots"))
QUERIES = ("rim; 15", 'red\n"boots"', "nothing was clicked", "boots")


@pytest.fixture
def split() -> Split:
    """The last row's only pair is filtered."""
    y = np.array([[0.1, 2], [0, 3], [0, 0], [0, 1]], np.float32)
    same = np.array([[0, 0], [0, 0], [0, 0], [0, 1]], bool)
    instances = Texts(uids=tuple("1234"), texts=QUERIES)
    return Split(instances=instances, labels_of=csr_matrix(y), filtered=csr_matrix(same))


def test_csv_has_a_row_a_pair(split: Split, tmp_path: Path) -> None:
    write_table(split, LABELS, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["query", "label_id", "label", "weight"],
        ["rim; 15", "a", '15" rim, used', "0.1"],
        ["rim; 15", "b", "boots", "2.0"],
        ['red\n"boots"', "b", "boots", "3.0"],
        ["nothing was clicked", "", "", ""],
        ["boots", "", "", ""],
    ]


def test_jsonl_has_a_row_a_query(split: Split, tmp_path: Path) -> None:
    write_table(split, LABELS, tmp_path / "t.jsonl")
    first, *_, last = map(orjson.loads, (tmp_path / "t.jsonl").read_bytes().splitlines())
    assert first == {
        "query": "rim; 15",
        "label_id": ["a", "b"],
        "label": ['15" rim, used', "boots"],
        "weight": [0.1, 2.0],
    }
    assert last == {"query": "boots", "label_id": [], "label": [], "weight": []}


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_service_compare_reads_it(split: Split, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    write_table(split, LABELS, path)
    known = read_queries(path, query="query", labels=["label_id"], limits=Limits())
    assert known == dict(zip(QUERIES, [("a", "b"), ("b",), (), ()], strict=True))


def test_data_pairs_reads_it_back(tmp_path: Path) -> None:
    written = tmp_path / "written.csv"
    written.write_text("q,k,w,id\nred shoes,shoes,1.5,7\nred shoes,boots,0.1,8\nhat,cap,3,9\n")
    names = {"query": "q", "label": "k", "weight": "w", "label_id": "id"}
    dataset = table(written, test_fraction=0.0, **names).dataset
    write_table(dataset.train, dataset.labels, tmp_path / "again.csv")
    names = {"query": "query", "label": "label", "weight": "weight", "label_id": "label_id"}
    again = table(tmp_path / "again.csv", test_fraction=0.0, **names).dataset
    assert relevance(again) == relevance(dataset)
    assert again.labels == dataset.labels


def test_an_unknown_ending_is_refused_and_nothing_is_written(split: Split, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"t\.json: unknown ending; .* \.csv or \.jsonl"):
        write_table(split, LABELS, tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []
