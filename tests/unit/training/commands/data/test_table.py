"""`keymatch data table`: the table's content, reading it by the service, and the command line."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from scipy.sparse import csr_matrix

from service.command_line import run
from service.comparison.comparison import read_queries
from service.settings import Limits
from tests.support.tiny.tables import relevance
from tests.support.tiny.tables import table as table_of
from training.__main__ import app
from training.commands.data.table import write_table
from training.datasets import lf_xmc
from training.datasets.dataset import Split, Texts


def table(data: Path, out: Path, *more: str) -> int:
    return run(app, ["data", "table", "--data", str(data), "--out", str(out), *more])


def test_test_rows_are_written_and_training_rows_if_asked(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, out = lf_xmc.read(data), tmp_path / "new/test.csv"
    capsys.readouterr()
    assert table(data, out) == 0
    sizes = f"{len(dataset.test)} queries, {dataset.test.labels_of.nnz} pairs"
    columns = "columns query, label_id, label, weight"
    assert capsys.readouterr().out == f"{out}: {sizes}; {columns}\n"
    lines = out.read_text().splitlines()[1:]
    queries = dict.fromkeys(line.split(",")[0] for line in lines)
    assert tuple(queries) == tuple(dict.fromkeys(dataset.test.instances.texts))
    assert table(data, tmp_path / "train.jsonl", "--split", "train") == 0
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == len(dataset.train)


def test_what_cannot_be_written_is_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(out: Path) -> str:
        capsys.readouterr()
        assert table(data, out) == 2
        return capsys.readouterr().err

    clicks = tmp_path / "clicks.csv"
    clicks.write_text("mine")
    assert "unknown ending; the table is written as .csv or .jsonl" in said(tmp_path / "t.parquet")
    assert f"{clicks}: exists already" in said(clicks)
    assert f"cannot be written: {clicks} is not a folder" in said(clicks / "t.csv")
    with pytest.raises(SystemExit):
        table(data, tmp_path / "t.csv", "--split", "validation")
    assert not (tmp_path / "t.csv").exists()
    dataset = lf_xmc.read(data)
    whole = replace(dataset, name="whole", test=dataset.test.select(np.arange(0)))
    lf_xmc.write(whole, tmp_path / "whole")
    assert table(tmp_path / "whole", tmp_path / "t.csv") == 2
    assert "data set whole has no test rows to write; `data pairs" in capsys.readouterr().err


LABELS = Texts(uids=("a", "b"), texts=('15" rim, used', "boots"))
QUERIES = ("rim; 15", 'red\n"boots"', "nothing was clicked", "boots")


def test_a_table_has_the_pairs_that_count_and_the_service_reads_it(tmp_path: Path) -> None:
    y = np.array([[0.1, 2], [0, 3], [0, 0], [0, 1]], np.float32)
    same = np.array([[0, 0], [0, 0], [0, 0], [0, 1]], bool)  # the last row's only pair is filtered
    instances = Texts(uids=tuple("1234"), texts=QUERIES)
    split = Split(instances=instances, labels_of=csr_matrix(y), filtered=csr_matrix(same))
    for ending in ("csv", "jsonl"):
        path = tmp_path / f"t.{ending}"
        write_table(split, LABELS, path)
        known = read_queries(path, query="query", labels=["label_id"], limits=Limits())
        assert known == dict(zip(QUERIES, [("a", "b"), ("b",), (), ()], strict=True))
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
    first, *_, last = map(orjson.loads, (tmp_path / "t.jsonl").read_bytes().splitlines())
    assert first == {
        "query": "rim; 15",
        "label_id": ["a", "b"],
        "label": ['15" rim, used', "boots"],
        "weight": [0.1, 2.0],
    }
    assert last == {"query": "boots", "label_id": [], "label": [], "weight": []}


def test_data_pairs_reads_it_back(tmp_path: Path) -> None:
    written = tmp_path / "written.csv"
    written.write_text("q,k,w,id\nred shoes,shoes,1.5,7\nred shoes,boots,0.1,8\nhat,cap,3,9\n")
    names = {"query": "q", "label": "k", "weight": "w", "label_id": "id"}
    dataset = table_of(written, test_fraction=0.0, **names).dataset
    write_table(dataset.train, dataset.labels, tmp_path / "again.csv")
    names = {"query": "query", "label": "label", "weight": "weight", "label_id": "label_id"}
    again = table_of(tmp_path / "again.csv", test_fraction=0.0, **names).dataset
    assert relevance(again) == relevance(dataset)
    assert again.labels == dataset.labels
