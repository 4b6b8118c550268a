"""`python -m training data table`: the command line around the table of a split."""

from pathlib import Path

import pytest

from service.command_line import run
from training.__main__ import app
from training.datasets import lf_xmc


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data set of 50 rows."""
    clicks, folder = tmp_path / "clicks.csv", tmp_path / "data"
    rows = "".join(f"query {row},keyword {row % 7}\n" for row in range(50))
    clicks.write_text(f"query,keyword\n{rows}")
    columns = ["--query", "query", "--label", "keyword"]
    assert run(app, ["data", "pairs", "--input", str(clicks), *columns, "--out", str(folder)]) == 0
    return folder


def table(data: Path, out: Path, *more: str) -> int:
    return run(app, ["data", "table", "--data", str(data), "--out", str(out), *more])


def test_test_rows_are_written_and_training_rows_if_asked(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, out = lf_xmc.read(data), tmp_path / "new/test.csv"
    capsys.readouterr()
    assert table(data, out) == 0
    test = len(dataset.test)
    sizes = f"{test} queries, {test} pairs; columns query, label_id, label, weight"
    assert capsys.readouterr().out == f"{out}: {sizes}\n"
    lines = out.read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == list(dataset.test.instances.texts)
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
    assert "unknown ending; the table is written as .csv or .jsonl" in said(tmp_path / "t.parquet")
    assert f"{clicks}: exists already" in said(clicks)
    assert f"cannot be written: {clicks} is not a folder" in said(clicks / "t.csv")
    with pytest.raises(SystemExit):
        table(data, tmp_path / "t.csv", "--split", "validation")
    assert not (tmp_path / "t.csv").exists()


def test_a_split_without_rows_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    columns = ["--query", "query", "--label", "keyword", "--test-fraction", "0"]
    source = ["--input", str(tmp_path / "clicks.csv")]
    assert run(app, ["data", "pairs", *source, *columns, "--out", str(whole)]) == 0
    assert table(whole, tmp_path / "t.csv") == 2
    assert "data set whole has no test rows to write; `data pairs" in capsys.readouterr().err
