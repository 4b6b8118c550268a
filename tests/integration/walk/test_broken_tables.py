"""An unusable table is refused in one line that says what is wrong, where, and what to do."""

import gzip
import io
import os
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.commands import Refused
from training.__main__ import app

HEADER = "query,keyword,weight,time\n"
ROWS = "".join(f"red shoes {n},shoes {n % 3},1,2026-01-0{n % 9 + 1}\n" for n in range(30))
GOOD = HEADER + ROWS
SAME = "".join(f"tent {n},tent {n}\n" for n in range(30))


LONG = f"{'x' * 2**20}\n"


def whole_parquet() -> bytes:
    content = io.BytesIO()
    parquet.write_table(pyarrow.table({"query": ["a"] * 99, "keyword": ["b"] * 99}), content)
    return content.getvalue()


WEIGHT, TIME = ["--weight", "weight"], ["--time", "time"]
BROKEN: dict[str, tuple[str, str | bytes, list[str], list[str]]] = {
    "wrong delimiter": ("csv", GOOD, ["--delimiter", ";"], [":1: query:", "delimiter: semicolon"]),
    "missing column": ("csv", "query,label\nx,y\n", [], [":1: keyword:", "are query, label"]),
    "no header": ("csv", ROWS, [], [":1: query:", "line 1 must name them"]),
    "column twice": ("csv", "query,keyword,query\na,b,c\n", [], [":1: query:", "rename one"]),
    "empty": ("csv", "", [], ["is empty", "header line"]),
    "blank first line": ("csv", f"\n{GOOD}", [], [":1:", "is blank", "header line"]),
    "header alone": ("csv", HEADER, [], ["holds no rows"]),
    "picture": ("csv", b"\x89PNG\r\n\x1a\n\0\0", [], [":1:", "not valid UTF-8", "save the file"]),
    "any bytes": ("csv", bytes(range(256)), [], [":1:", "NUL", "save the file"]),
    "UTF-16": ("csv", GOOD.encode("utf-16"), [], [":1:", "not valid UTF-8", "save the file"]),
    "UTF-16 without mark": (
        "csv",
        GOOD.encode("utf-16-le"),
        [],
        [":1:", "NUL", "as text"],
    ),
    "Latin-1": ("csv", f"{GOOD}caf\xe9,x,1,1\n".encode("latin-1"), [], [":32:", "byte 4"]),
    "open quote": ("csv", f'{HEADER}"red,x,1,1\n{ROWS}', [], [":2:", "never closed"]),
    "line ends of old Macs": ("csv", GOOD.replace("\n", "\r"), [], [":1:", "line feed"]),
    "too many fields": ("csv", f"{GOOD}a,b,1,1,x\n", [], [":32: 5 fields", "must be quoted"]),
    "too few fields": ("csv", f"{GOOD}a,b\n", [], [":32: 2 fields", "the header has 4"]),
    "text after a quote": ("csv", f'{HEADER}"red" x,x,1,1\n', [], [":2:", "double each"]),
    "endless line": ("csv", f"query,keyword\n{'x' * 2**25},b\n", [], [":2:", "16,777,216 bytes"]),
    "endless row": ("csv", f'query,keyword\n"{LONG * 18}', [], [":2:", "is not closed"]),
    "NUL": ("csv", f"{HEADER}a\0b,c,1,1\n{ROWS}", [], [":2:", "NUL"]),
    "cut gzip": ("csv.gz", gzip.compress(GOOD.encode() * 9)[:-30], [], ["gzip", "copy the file"]),
    "no gzip": ("csv.gz", GOOD, [], [":1:", "gzip stream is damaged"]),
    "cut parquet": ("parquet", whole_parquet()[:-50], [], ["cannot be read as parquet"]),
    "empty parquet": ("parquet", "", [], ["cannot be read as parquet"]),
    "a list in jsonl": ("jsonl", '["a", "b"]\n', [], [":1:", "a JSON object, not list"]),
    "missing key": ("jsonl", '{"query": "a"}\n', [], [":1: keyword:", "the columns are query"]),
    "cut json": ("jsonl", '{"query": "a",\n', [], [":1: not valid JSON", "object a line"]),
    "a number as text": ("jsonl", '{"query": 7, "keyword": "b"}\n', [], [":1: query:", "int"]),
    "NaN weight": ("csv", f"{HEADER}a,b,NaN,1\n", WEIGHT, [":2: weight: 'NaN'", "positive"]),
    "negative weight": ("csv", f"{HEADER}a,b,-1,1\n", WEIGHT, [":2: weight: '-1'", "positive"]),
    "text as weight": ("csv", f"{HEADER}a,b,much,1\n", WEIGHT, [":2: weight: 'much'"]),
    "huge weights": ("csv", f"{GOOD}a,b,1e99,1\n", WEIGHT, ["weights", "too large"]),
    "impossible time": ("csv", f"{HEADER}a,b,1,2026-13-45\n", TIME, [":2: time:", "ISO 8601"]),
    "unknown ending": ("xlsx", GOOD, [], ["unknown ending", ".csv, .tsv or .jsonl"]),
    "all rows bad": ("csv", f"{HEADER}a,\n", ["--on-bad-row", "skip"], ["all 1 rows are bad"]),
    "keyword is query": ("csv", f"query,keyword\n{SAME}", [], ["equals", "--keep-exact"]),
    "one query": ("csv", "query,keyword\na,b\na,c\n", [], ["1 queries", "--test-fraction 0"]),
}


def refusal(refused: Refused, table: Path, *options: str) -> str:
    """Return the error of `data pairs` for a table; it must write nothing."""
    out = table.parent / "out"
    columns = () if "--label" in options else ("--label", "keyword")
    arguments = ("--input", table, "--query", "query", *columns, *options, "--out", out)
    said = refused(app, "data", "pairs", *arguments)
    assert [path.name for path in table.parent.iterdir() if path != table] == []
    return said


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_table_is_refused(refused: Refused, tmp_path: Path, kind: str) -> None:
    ending, content, options, words = BROKEN[kind]
    table = tmp_path / f"clicks.{ending}"
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refusal(refused, table, *options)
    assert said.startswith(str(table))
    for word in words:
        assert word in said


def test_one_column_cannot_be_both(refused: Refused, tmp_path: Path) -> None:
    table = tmp_path / "clicks.csv"
    table.write_text(GOOD)
    assert "name the same column, 'query'" in refusal(refused, table, "--label", "query")


def test_what_is_no_file_is_refused(refused: Refused, tmp_path: Path) -> None:
    table = tmp_path / "clicks.csv"
    assert refusal(refused, table) == f"{table}: cannot be read: No such file or directory"
    table.mkdir()
    assert refusal(refused, table) == f"{table}: cannot be read: Is a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_refused(refused: Refused, tmp_path: Path) -> None:
    table = tmp_path / "clicks.csv"
    table.write_text(GOOD)
    table.chmod(0)
    assert refusal(refused, table) == f"{table}: cannot be read: Permission denied"
