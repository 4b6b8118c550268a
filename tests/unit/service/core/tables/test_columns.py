"""Tables of every format give the same columns; errors name the file and the line."""

import gzip
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from service.core.errors import InvalidData, InvalidInput
from service.core.files.lines import Rejects
from service.core.tables.columns import read_columns

ROWS = [["ice axe", "1"], ['he said \u2028 "hi"', "2"]]
LF_ONLY = '{"n": "1", "q": "ice axe"}\n\n{"q": "he said \u2028 \\"hi\\"", "n": "2"}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", '\ufeffq,n\r\nice axe,1\r\n\r\n"he said \u2028 ""hi""",2\r\n'),
        ("t2.csv", 'n;q\n1;ice axe\n2;"he said \u2028 ""hi"""\n'),
        ("t.tsv", 'n\tq\n1\tice axe\n2\the said \u2028 "hi"'),
        ("t.jsonl", LF_ONLY),
    ],
)
def test_every_format_gives_the_same_columns(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode())
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    for file in tmp_path.iterdir():
        assert [values for _, values in read_columns(file, ["q", "n"])] == ROWS


def test_parquet_gives_the_same_columns(tmp_path: Path) -> None:
    columns = {"n": [row[1] for row in ROWS], "q": [row[0] for row in ROWS]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    assert list(read_columns(tmp_path / "t.parquet", ["q", "n"])) == [(1, ROWS[0]), (2, ROWS[1])]


def test_a_text_file_has_one_column(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a,b\n\nc\n")
    assert list(read_columns(tmp_path / "t.txt", ["any"])) == [(1, ["a,b"]), (2, [""]), (3, ["c"])]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"a,b\n1,2\n", ":1: q: there is no such column; the columns are a, b"),
        ("t.csv", b"q,q\n1,2\n", ":1: q: occurs more than once"),
        ("t.csv", b"", "is empty; expected a header line"),
        ("t.csv", b"q,b\nx,1\nx\n", ":3: 1 fields, but the header has 2"),
        ("t.csv", b"q\nx\n\xff\n", ":3: not valid UTF-8"),
        ("t.tsv", b"q\tb\nx\n", ":2: 1 fields"),
        ("t.jsonl", b'{"q": 1}\n[]\n', ":2: expected a JSON object, not list"),
        ("t.jsonl", b'{"q": 1}\n{\n', ":2: not valid JSON"),
        ("t.jsonl", b'{"b": 1}\n', ":1: q: there is no such column; the columns are b"),
        ("t.csv", b"q,b\nx,1,2\n", "a field that holds the delimiter must be quoted"),
        ("t.csv", b"\nq,b\nx,1\n", ":1: is blank; expected a header line"),
        ("t.csv", "q,b\nx,1\n".encode("utf-16-le"), ":1: holds a NUL character"),
        ("t.csv.gz", b"no gzip", ":1: the gzip stream is damaged"),
        ("t.parquet", b"no parquet", "cannot be read as parquet"),
        ("t.xlsx", b"", "unknown ending; expected a .csv"),
        ("t.parquet.gz", b"", "unknown ending"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidData) as objection:
        list(read_columns(path, ["q"]))
    assert str(objection.value).startswith(str(path))
    assert said in str(objection.value)


def test_a_csv_is_read_by_the_delimiter_that_gives_the_wanted_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("q;a,b;c,d,e\nx;1;2\n")  # more commas than semicolons
    assert list(read_columns(path, ["q"])) == [(2, ["x"])]
    path.write_text("q|other;q\nx|1;2\n")
    assert list(read_columns(path, ["q"], delimiter="|")) == [(2, ["x"])]
    with pytest.raises(InvalidInput, match=r"t\.tsv is no \.csv file"):
        read_columns(tmp_path / "t.tsv", ["q"], delimiter="|")


def test_bad_rows_can_be_left_out(tmp_path: Path) -> None:
    contents = {"t.jsonl": b'{"q": "a"}\n\n[]\n{"q": "b"}\n', "t.txt": b"a\n\xff\n\xff\nb\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        rejects = Rejects()
        rows = list(read_columns(tmp_path / name, ["q"], on_bad=rejects))
        assert rows == [(1, ["a"]), (4, ["b"])]
        assert rejects.rows[-1].line == 3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("none.csv", "none.parquet"):
        with pytest.raises(InvalidData, match=f"{name}.*: cannot be read: .*o such file"):
            list(read_columns(tmp_path / name, ["q"]))
