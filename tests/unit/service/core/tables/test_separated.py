"""csv and tsv files: delimiters, stray quotes, line ends."""

from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidData
from service.core.files.bad_rows import Rejects, stop
from service.core.tables.separated import read_csv, sniff_delimiter


def rows(path: Path, content: bytes, *, delimiter: str = ",", **given: Any) -> list[Any]:
    path.write_bytes(content)
    on_bad = given.get("on_bad", stop)
    return list(read_csv(path, ["q", "k"], delimiter=delimiter, on_bad=on_bad))


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [
        ("q,k", ","),
        ("q;k", ";"),
        ("k\tq\tother, one", "\t"),
        ("q|k|n", "|"),
        ('"q";"k"', ";"),
        ("\ufeffq; k", ";"),
        ("query;keyword,comma", ","),  # neither has the columns: the comma comes first
        ("", ","),
    ],
)
def test_the_delimiter_is_read_from_the_header(tmp_path: Path, header: str, delimiter: str) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\r\na,b\n")
    assert sniff_delimiter(tmp_path / "t.csv", ["q", "k"]) == delimiter


def test_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfq,k\r\n"a\r\nb",c\r\n\r\nd,e\r\n'
    assert rows(tmp_path / "t.csv", content) == [(2, ["a\nb", "c"]), (5, ["d", "e"])]


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


def test_a_header_that_is_not_utf8_is_always_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r":1: not valid UTF-8"):
        rows(tmp_path / "t.csv", b"q,k,\xe9\na,b,c\n", on_bad=Rejects())
