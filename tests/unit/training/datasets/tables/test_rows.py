"""A bad cell of a table is reported as an error, or its row is skipped.

`tests/unit/service/core/tables` tests bad rows, headers and files.
"""

import sys
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData, MissingExtra
from service.core.files.lines import Rejects
from service.core.memory.decay import FAST_CLOCK_SECONDS, LEAST_SHARE
from tests.support.tiny.tables import HEADER, from_table, relevance, table, write_table
from training.datasets.pair_weights import DAY, decayed
from training.datasets.pair_weights import relevance as relevance_of
from training.datasets.tables.rows import LEAST_WEIGHT, MOST_WEIGHT, time_of

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
    with pytest.raises(MissingExtra, match=r"pyarrow is not installed: .*\.\[training\]"):
        from_table(tmp_path / "t.parquet", query="q", label="k")


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()


def test_times_and_dates() -> None:
    for value in (
        *(NOON, int(NOON), f"{NOON}", f" {int(NOON)} "),
        *("2024-05-01T12:00:00Z", "2024-05-01 12:00:00", "2024-05-01 12:00:00 UTC"),
        *("2024-05-01T14:00:00+02:00", "20240501T120000"),
        *("2024-05-01t12:00:00z", "2024-05-01T12:00:00z", "2024-05-01t12:00:00 utc"),
        *(datetime(2024, 5, 1, 12), datetime(2024, 5, 1, 12, tzinfo=UTC)),
    ):
        assert time_of(value, now=NOON) == NOON, value
    midnight = NOON - 12 * 3600
    for value in ("2024-05-01", date(2024, 5, 1)):
        assert time_of(value, now=NOON) == midnight


@pytest.mark.parametrize("value", ["", "yesterday", None, True, "nan", -1, 1.7e12, "01/05/2024"])
def test_no_time(value: object) -> None:
    with pytest.raises(ValueError, match="is no time: neither Unix seconds nor ISO 8601"):
        time_of(value, now=NOON)


@pytest.mark.parametrize("year", [2025, 2206, 5138, 9999])
def test_a_time_that_has_not_passed_is_a_bad_row(tmp_path: Path, year: int) -> None:
    """The rule is that of the service: a clock may be an hour ahead."""
    newest = NOON + FAST_CLOCK_SECONDS
    assert time_of(newest, now=NOON) == newest
    late = datetime(year, 1, 1, tzinfo=UTC)
    for value in (
        late,
        f"{year}-01-01",
        str(late.timestamp()),
        late.isoformat(),
        NOON + FAST_CLOCK_SECONDS + 1,
    ):
        with pytest.raises(ValueError, match="has not passed" if year < 5138 else "time|passed"):
            time_of(value, now=NOON)


def test_one_row_from_the_future_is_left_out_and_changes_no_weight(tmp_path: Path) -> None:
    lines = ["q,k,t", *["shoes,a,2024-01-31"] * 99, "shoes,b,2024-01-31"]
    names = {"query": "q", "label": "k", "time": "t", "half_life": 1.0, "test_fraction": 0}
    (tmp_path / "t.csv").write_text("\n".join(lines))
    expected = relevance(from_table(tmp_path / "t.csv", **names))
    assert expected == {("shoes", "a"): 99.0, ("shoes", "b"): 1.0}
    (tmp_path / "t.csv").write_text("\n".join([*lines, "hat,a,2206-01-31"]))
    rejects = Rejects()
    assert relevance(table(tmp_path / "t.csv", **names, on_bad=rejects).dataset) == expected
    assert [row.line for row in rejects.rows] == [102]
    with pytest.raises(InvalidData, match=r"t\.csv:102: t: '2206-01-31' has not passed"):
        from_table(tmp_path / "t.csv", **names)


@settings(max_examples=100)
@given(
    weights=st.lists(st.floats(LEAST_WEIGHT, MOST_WEIGHT), min_size=2, max_size=4),
    half_life=st.floats(1e-6, 1e6),
    days=st.integers(0, 20_000),
)
def test_rows_of_one_day_keep_the_ratios_of_their_weights(
    weights: list[float], half_life: float, days: int
) -> None:
    times = np.array([0.0] * len(weights) + [days * DAY])
    given = np.array([*weights, 1.0])
    left = relevance_of(csr_matrix(decayed(given, times, half_life=half_life)), scale="given")
    ratios = left.toarray()[0, :-1].astype(np.float64) / weights
    assert ratios == pytest.approx(np.full(len(weights), ratios[0]), rel=1e-5)


def test_rows_that_keep_the_least_share_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("q,k,t\na,b,2000-01-01\na,c,2024-01-11\na,b,2024-01-31\n")
    names = {"query": "q", "label": "k", "time": "t", "test_fraction": 0}
    read = table(path, **names, half_life=1.0)
    assert read.facts.faded == 1
    assert relevance(read.dataset)["a", "c"] == LEAST_SHARE
    assert table(path, **names).facts.faded == 0


@pytest.mark.parametrize("weight", ["1e-31", "1e31", "1e-300"])
def test_a_weight_that_would_be_lost_is_a_bad_row(tmp_path: Path, weight: str) -> None:
    (tmp_path / "t.csv").write_text(f"q,k,w\na,b,{weight}\n")
    with pytest.raises(InvalidData, match=r":2: w: '1e.*' is not a number from 1e-30 to 1e\+30"):
        from_table(tmp_path / "t.csv", query="q", label="k", weight="w")
