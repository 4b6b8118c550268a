"""A bad cell of a table is reported as an error, or its row is skipped.

`tests/unit/service/core/tables` tests bad rows, headers and files.
"""

import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from service.core.errors import InvalidData, MissingExtra
from service.core.files.lines import Rejects
from tests.support.tiny.tables import HEADER, from_table, table, write_table
from training.datasets.tables.rows import time_of

BAD_ROWS = [
    ("csv", "q,k,w\na,b,1\n,b,1\n", ":3: q: is empty"),
    ("csv", "q,k,w\na, \t ,1\n", ":2: k: is empty"),
    *(
        ("csv", f"q,k,w\na,b,{weight}\n", f":2: w: '{weight}' is not a positive finite number")
        for weight in ("0", "-1", "nan", "inf")
    ),
    ("csv", 'q,k,w\n"a\nb",c,1\n"d\ne",,1\n', ":4: k: is empty"),
    ("tsv", "q\tk\tw\na\tb\n", ":2: 2 fields, but the header has 3"),
    ("jsonl", '{"q": "a", "k": "b", "w": 1}\n{', ":2: not valid JSON"),
    ("jsonl", '{"q": "a", "k": 3, "w": 1}\n', ":1: k: must be a text, not int"),
    ("jsonl", '{"q": "a", "k": "b", "w": true}\n', ":1: w: True is not a positive"),
    ("jsonl", "", ": holds no rows"),
]


@pytest.mark.parametrize(("ending", "content", "message"), BAD_ROWS)
def test_a_bad_row_is_named(tmp_path: Path, ending: str, content: str, message: str) -> None:
    path = tmp_path / f"table.{ending}"
    path.write_text(content)
    with pytest.raises(InvalidData) as caught:
        from_table(path, query="q", label="k", weight="w")
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize(
    ("ending", "content", "message"), [bad for bad in BAD_ROWS if bad[2].startswith(":2")]
)
def test_a_bad_row_is_rejected_and_the_next_one_read(
    tmp_path: Path, ending: str, content: str, message: str
) -> None:
    path, rejects = tmp_path / f"table.{ending}", Rejects()
    good = {"csv": "x,y,1\nz,y,1\n", "tsv": "x\ty\t1\nz\ty\t1\n"}
    lines = '{"q": "x", "k": "y", "w": 1}\n{"q": "z", "k": "y", "w": 1}\n'
    path.write_text(content.removesuffix("\n") + "\n" + good.get(ending, lines))
    read = table(path, query="q", label="k", weight="w", test_fraction=0, on_bad=rejects)
    assert str(rejects.rows[0]).startswith(message.removeprefix(":")[:20])
    assert read.dataset.train.instances.texts[-2:] == ("x", "z")
    assert len(rejects) == 1


def test_a_table_of_bad_rows_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("q,k\n,b\na,\n")
    with pytest.raises(InvalidData, match=r"t\.csv: all 2 rows are bad; the first: .*:2: q:"):
        from_table(tmp_path / "t.csv", query="q", label="k", on_bad=Rejects())


def test_an_id_with_two_texts_is_a_bad_row(tmp_path: Path) -> None:
    rejects = Rejects()
    (tmp_path / "t.csv").write_text("q,k,id\na,b,1\nc,d,1\ne,b,1\n")
    names = {"query": "q", "label": "k", "label_id": "id"}
    read = table(tmp_path / "t.csv", **names, test_fraction=0, on_bad=rejects)
    assert [row.line for row in rejects.rows] == [3]
    assert read.dataset.train.instances.texts == ("a", "e")
    assert read.facts.rows == 3


def test_parquet_errors_name_the_row(tmp_path: Path) -> None:
    rows = [["a", "b", 1.0, "1"], ["c", " ", 1.0, "2"]]
    path = write_table(tmp_path, "parquet", rows, HEADER)
    with pytest.raises(InvalidData, match=r"table\.parquet:2: k: is empty"):
        from_table(path, query="q", label="k")
    with pytest.raises(InvalidData, match="x: there is no such column; the columns are q, k, w,"):
        from_table(path, query="x", label="k")


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(MissingExtra, match=r"pyarrow is not installed: .*keymatch\[training\]"):
        from_table(tmp_path / "t.parquet", query="q", label="k")


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()


def test_times_and_dates() -> None:
    for value in (
        *(NOON, int(NOON), f"{NOON}", f" {int(NOON)} "),
        *("2024-05-01T12:00:00Z", "2024-05-01 12:00:00", "2024-05-01 12:00:00 UTC"),
        *("2024-05-01T14:00:00+02:00", "20240501T120000"),
        *(datetime(2024, 5, 1, 12), datetime(2024, 5, 1, 12, tzinfo=UTC)),
    ):
        assert time_of(value) == NOON, value
    assert time_of("2024-05-01") == time_of(date(2024, 5, 1)) == NOON - 12 * 3600


@pytest.mark.parametrize("value", ["", "yesterday", None, True, "nan", -1, 1.7e12, "01/05/2024"])
def test_no_time(value: object) -> None:
    with pytest.raises(ValueError, match="is no time: neither Unix seconds nor ISO 8601"):
        time_of(value)
