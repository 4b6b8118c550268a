"""Tables of every format give the same columns; errors name the file and the line."""

import gzip
import io
import re
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from service.core.errors import InvalidData, InvalidInput
from service.core.files.lines import OnBadRow, Rejects, stop
from service.core.tables.columns import read_columns, require_alike, text_cell
from service.core.tables.separated import HINTS, csv_writer, read_separated, sniff_delimiter
from service.core.text_identity import readable
from tests.support.extras import in_a_process_with

HUGE = "x" * 140_000  # beyond csv's largest field by default
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


# Parquet without packages that no extra installs -----------------------------------------------

WRITE_EVERY_TYPE = """
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
import pyarrow
from pyarrow import parquet

moment = 1714564800123456789  # 2024-05-01T12:00:00.123456789Z
times = {
    "s": pyarrow.array([moment // 10**9], pyarrow.timestamp("s")),
    "ms": pyarrow.array([moment // 10**6], pyarrow.timestamp("ms")),
    "us": pyarrow.array([moment // 10**3], pyarrow.timestamp("us")),
    "ns": pyarrow.array([moment], pyarrow.timestamp("ns")),
    "zoned": pyarrow.array([moment], pyarrow.timestamp("ns", tz="Europe/Berlin")),
    "coded": pyarrow.array([moment], pyarrow.timestamp("ns")).dictionary_encode(),
    "day": pyarrow.array([date(2024, 5, 1)]),
    "none": pyarrow.array([None], pyarrow.timestamp("ns")),
}
parquet.write_table(pyarrow.table(times), sys.argv[1])
int96 = {name: times[name] for name in ("ns", "zoned")}
parquet.write_table(pyarrow.table(int96), sys.argv[2], use_deprecated_int96_timestamps=True)
"""
READ_EVERY_TYPE = """
import sys
from pathlib import Path
from pyarrow.parquet import read_schema
from service.core.tables.columns import read_columns, require_alike
for path in map(Path, sys.argv[1:]):
    names = read_schema(path).names
    [(_, values)] = read_columns(path, names)
    for name, value in zip(names, values):
        print(name, value)
"""


def test_times_of_every_unit_are_read_with_what_the_extra_installs(tmp_path: Path) -> None:
    files = tmp_path / "t.parquet", tmp_path / "int96.parquet"
    in_a_process_with(("bulk",), WRITE_EVERY_TYPE, *files)
    for extra in ("bulk", "training"):
        found = in_a_process_with((extra,), READ_EVERY_TYPE, *files)
        exact = "2024-05-01 12:00:00.123456"
        assert found.splitlines() == [
            "s 2024-05-01 12:00:00",
            "ms 2024-05-01 12:00:00.123000",
            f"us {exact}",
            f"ns {exact}",
            f"zoned {exact}+00:00",
            f"coded {exact}",
            "day 2024-05-01",
            "none None",
            f"ns {exact}",
            f"zoned {exact}",  # INT96 has no zone; its times are UTC
        ]


def test_a_time_that_python_does_not_have_is_a_bad_row(tmp_path: Path) -> None:
    seconds = pyarrow.array([0, 10**12, 10**9, None, -(10**12)], pyarrow.timestamp("s"))
    parquet.write_table(pyarrow.table({"t": seconds, "q": list("abcde")}), tmp_path / "t.parquet")
    rejects = Rejects()
    rows = list(read_columns(tmp_path / "t.parquet", ["q", "t"], on_bad=rejects))
    assert [(line, values[0]) for line, values in rows] == [(1, "a"), (3, "c"), (4, "d")]
    assert [row.line for row in rejects.rows] == [2, 5]
    with pytest.raises(InvalidData, match=r"t\.parquet:2: t: holds no time of the years 1 to 9999"):
        list(read_columns(tmp_path / "t.parquet", ["t"]))


def test_parts_with_numbers_of_every_type_are_one_table(tmp_path: Path) -> None:
    types = ("int8", "uint64", "float32", "float64")
    arrays = [pyarrow.array([2], getattr(pyarrow, name)()) for name in types]
    arrays += [pyarrow.array([Decimal("2.00")]), pyarrow.array([Decimal(2)]).dictionary_encode()]
    parts = [tmp_path / f"{number}.parquet" for number in range(len(arrays))]
    for part, array in zip(parts, arrays, strict=True):
        parquet.write_table(pyarrow.table({"w": array}), part)
    require_alike(parts, ["w"])
    assert [float(row[1][0]) for part in parts for row in read_columns(part, ["w"])] == [2.0] * 6


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


# Delimiters, stray quotes, line ends and long fields of csv and tsv files ----------------------


def rows(path: Path, content: bytes, *, on_bad: OnBadRow = stop) -> list[Any]:
    path.write_bytes(content)
    return list(read_separated(path, ["q", "k"], delimiter=",", on_bad=on_bad))


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [
        ("q,k", ","),
        ("q;k", ";"),
        ("k\tq\tother, one", "\t"),
        ("q|k|n", "|"),
        ('"q";"k"', ";"),
        ("\ufeffq; k", ";"),
        ("query;keyword,comma", ","),  # neither gives both columns: comma wins
        ("", ","),
        (f"q;{HUGE};k", ";"),
    ],
    ids=range(9),
)
def test_the_delimiter_is_read_from_the_header(tmp_path: Path, header: str, delimiter: str) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\r\na,b\n")
    assert sniff_delimiter(tmp_path / "t.csv", ["q", "k"]) == delimiter


def test_a_stray_quote_costs_one_row_alone(tmp_path: Path) -> None:
    lines = [f"query {line},keyword" for line in range(2, 40_000)]  # beyond csv's largest field
    lines[5], lines[100] = '"stray,x', 'stray "quote,x'
    rejects = Rejects()
    content = "\n".join(["q,k", *lines]).encode()
    found = rows(tmp_path / "t.csv", content, on_bad=rejects)
    assert [row.line for row in rejects.rows] == [7]
    assert [line for line, _ in found] == [line for line in range(2, 40_000) if line != 7]
    assert dict(found)[102] == ['stray "quote', "x"]


def test_a_quoted_field_of_several_lines_is_rejected_as_a_whole(tmp_path: Path) -> None:
    rejects = Rejects()
    content = b'q,k\n"a\nb\xe9\nc",x\nd,e\n'
    assert rows(tmp_path / "t.csv", content, on_bad=rejects) == [(5, ["d", "e"])]
    assert [(row.line, row.reason) for row in rejects.rows] == [
        (3, "not valid UTF-8 at byte 2 of the line; save the file as UTF-8")
    ]
    with pytest.raises(InvalidData, match=r":1: not valid UTF-8"):  # a header cannot be skipped
        rows(tmp_path / "t.csv", b"q,k,\xe9\na,b,c\n", on_bad=rejects)


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_long_field_that_nobody_asked_for_is_read_past(tmp_path: Path, ending: str) -> None:
    path, comma = tmp_path / f"t.{ending}", "," if ending == "csv" else "\t"
    lines = [["q", "html", "k"], ["a", "ok", "b"], ["c", HUGE, "d"], ["e", "ok", "f"]]
    path.write_text("".join(comma.join(line) + "\n" for line in lines))
    found = [values for _, values in read_columns(path, ["q", "k"])]
    assert found == [["a", "b"], ["c", "d"], ["e", "f"]]


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        (b'"a,b\n', "the quotation mark that opens a field is never closed"),
        (b'"a"x,b\n', "a field goes on after its closing quotation mark; double each"),
        (b"a\rb,c\n", "a line ends in a carriage return alone"),
        (b'"a\n' + b"x\n" * 2**16, "it has over 65,536 lines or 16,777,216 characters; either"),
    ],
)
def test_each_error_has_its_own_hint(tmp_path: Path, row: bytes, hint: str) -> None:
    with pytest.raises(InvalidData) as raised:
        rows(tmp_path / "t.csv", b"q,k\n" + row)
    assert raised.value.reason.startswith(f"not a valid row: {hint}")
    assert raised.value.line == 2
    others = [other for other in HINTS.values() if not other.startswith(hint)]
    assert len(others) == len(HINTS) - 1
    assert not any(other in raised.value.reason for other in others)


def test_a_line_without_an_end_costs_one_row_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        file.write(b"q,k\na,b\n")
        file.truncate(2**27)  # NUL characters, which take no space on disk
        file.seek(2**27)
        file.write(b"\nc,d\n")
    rejects = Rejects()
    tracemalloc.start()
    try:
        found = list(read_separated(path, ["q", "k"], delimiter=",", on_bad=rejects))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [(2, ["a", "b"]), (4, ["c", "d"])]
    assert [(row.line, row.reason.split(";")[0]) for row in rejects.rows] == [
        (3, "is longer than 16,777,216 bytes")
    ]
    assert peak < 4 * 2**24


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    texts = ['a "b", c', "two\nlines", "a\rb", "\r\n", " x ", "=1+1"]
    content = io.StringIO()
    writer = csv_writer(content)
    writer.writerow(["q", "k"])
    writer.writerows([text, "k"] for text in texts)
    assert content.getvalue().startswith('q,k\n"a ""b"", c",k\n')
    found = rows(tmp_path / "t.csv", content.getvalue().encode())
    assert [values for _, values in found] == [[text.replace("\r\n", "\n"), "k"] for text in texts]


@given(st.text())
def test_a_cell_is_what_the_service_takes_as_a_text(text: str) -> None:
    try:
        cell = text_cell(text)
    except ValueError as error:
        assert not text.strip() or re.search("control character|no visible", str(error))
    else:
        assert cell == " ".join(text.split()) == readable(cell)


@pytest.mark.parametrize("control", ["\0", "\x1b", "\x1c", "\x7f", "\x9b"])
def test_control_characters_are_refused(control: str) -> None:
    for wrong in (f"a{control}b", control):
        with pytest.raises(ValueError, match=f"control character U.{ord(control):04X}"):
            text_cell(wrong)
