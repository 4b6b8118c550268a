"""Reading csv and tsv files: delimiters, stray quotes, line ends, long fields."""

import io
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidData
from service.core.files.lines import OnBadRow, Rejects, stop
from service.core.tables.columns import read_columns
from service.core.tables.separated import HINTS, csv_writer, read_separated, sniff_delimiter

HUGE = "x" * 140_000  # beyond csv's largest field by default


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
