"""Tables of (query, keyword) rows: every format, the split, and every bad row named."""

import csv
import gzip
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import InvalidData, InvalidInput, MissingExtra
from training.datasets import lf_xmc
from training.datasets.bad_rows import OnBadRow, Rejects, stop
from training.datasets.dataset import Dataset
from training.datasets.pairs import PairOptions, TableData
from training.datasets.pairs import from_table as read_table
from training.datasets.tables.rows import Columns
from training.datasets.train_test_split import is_test

HEADER = ["q", "k", "w", "id"]
ROWS: list[list[Any]] = [
    ["red shoes", "shoes", 1.5, 7],
    ["  red   shoes ", "shoes", 2, 7],
    ["boots", "winter  boots", 0.25, 8],
    ["hat", "boots", 1, 9],
    ["scarf", "hat", 3, 10],
]
FORMATS = ["csv", "tsv", "jsonl", "csv.gz", "tsv.gz", "jsonl.gz", "parquet"]


def write_table(folder: Path, ending: str, rows: list[list[Any]], header: list[str]) -> Path:
    path = folder / f"table.{ending}"
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="PARQUET NOT READ: no pyarrow")
        from pyarrow import parquet

        columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
        for name in set(header) & {"w"}:
            columns[name] = [float(value) for value in columns[name]]
        parquet.write_table(pyarrow.table(columns), path)
        return path
    if ending.startswith("jsonl"):
        text = "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
    else:
        stream = io.StringIO()
        csv.writer(stream, delimiter="," if ending.startswith("csv") else "\t").writerows(
            [header, *rows]
        )
        text = stream.getvalue()
    content = text.encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    return path


def table(path: Path, *, on_bad: OnBadRow = stop, **given: Any) -> TableData:
    """`from_table` with the fields of `Columns` and of `PairOptions` as arguments."""
    options = {key: value for key, value in given.items() if hasattr(PairOptions, key)}
    names = {key: value for key, value in given.items() if key not in options}
    return read_table(path, Columns(**names), PairOptions(**options), on_bad=on_bad)


def from_table(path: Path, **given: Any) -> Dataset:
    return table(path, **given).dataset


def relevance(dataset: Dataset) -> dict[tuple[str, str], float]:
    found = {}
    for split in (dataset.train, dataset.test):
        entries = split.labels_of.tocoo()
        for row, label, value in zip(entries.row, entries.col, entries.data, strict=True):
            found[split.instances.texts[row], dataset.labels.texts[label]] = float(value)
    return found


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_reads_the_same(tmp_path: Path, ending: str) -> None:
    path = write_table(tmp_path, ending, ROWS, HEADER)
    dataset = from_table(path, query="q", label="k", weight="w", label_id="id", test_fraction=0.5)
    assert dataset.labels.uids == ("7", "8", "9", "10")
    assert dataset.labels.texts == ("shoes", "winter boots", "boots", "hat")
    assert relevance(dataset) == {
        ("red shoes", "shoes"): 3.5,
        ("boots", "winter boots"): 0.25,
        ("hat", "boots"): 1.0,
        ("scarf", "hat"): 3.0,
    }
    assert (dataset.name, dataset.source, dataset.fields) == ("table", path.name, ("title",))


def test_without_weight_and_id(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    dataset = from_table(path, query="q", label="k", test_fraction=0.5)
    assert dataset.labels.uids == dataset.labels.texts
    assert relevance(dataset)["red shoes", "shoes"] == 2.0


def test_a_query_that_is_a_label_is_filtered(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    dataset = from_table(path, query="q", label="k", test_fraction=0.5)
    filtered = set()
    for split in (dataset.train, dataset.test):
        for row, label in zip(*split.filtered.nonzero(), strict=True):
            filtered.add((split.instances.texts[row], dataset.labels.texts[label]))
    assert filtered == {("boots", "boots"), ("hat", "hat")}


def test_exact_pairs_are_kept_on_request(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("q,k\na,a\nb,a\nc,b\n")
    names: dict[str, Any] = {"query": "q", "label": "k", "test_fraction": 0}
    filtering = table(tmp_path / "t.csv", **names)
    keeping = table(tmp_path / "t.csv", **names, keep_exact=True)
    assert (filtering.facts.exact, keeping.facts.exact) == (1, 1)
    assert filtering.dataset.train.filtered.nnz == 2  # (a, a), and (b, b), which is no pair
    assert keeping.dataset.train.filtered.nnz == 0
    assert relevance(keeping.dataset)["a", "a"] == 1.0


def test_the_facts_say_what_was_done(tmp_path: Path) -> None:
    rows = [["a", "b", "2024-01-01"], ["a", "b", "2024-01-03"], ["c", "d", 1704412800]]
    path = write_table(tmp_path, "csv", rows, ["q", "k", "t"])
    facts = table(path, query="q", label="k", time="t", test_fraction=0.5).facts
    assert (facts.rows, facts.rejected, facts.merged, facts.test_only) == (3, 0, 1, 1)
    assert facts.period == (1704067200.0, 1704412800.0)


def test_without_a_test_split(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    dataset = from_table(path, query="q", label="k", test_fraction=0)
    assert (len(dataset.train), len(dataset.test)) == (4, 0)
    assert dataset.test.labels_of.shape == dataset.test.filtered.shape == (0, 4)
    for layout in ("json", "sparse"):
        lf_xmc.write(dataset, tmp_path / layout, layout=layout)
        read = lf_xmc.read(tmp_path / layout)
        assert (len(read.test), read.train.instances) == (0, dataset.train.instances)


def test_the_newest_queries_are_for_test(tmp_path: Path) -> None:
    rows = [[f"query {row}", "label", 1000 - row] for row in range(10)] + [["query 9", "x", 2000]]
    path = write_table(tmp_path, "csv", rows, ["q", "k", "t"])
    dataset = from_table(path, query="q", label="k", time="t", test_fraction=0.3)
    assert set(dataset.test.instances.texts) == {"query 9", "query 0", "query 1"}


def test_old_rows_weigh_less(tmp_path: Path) -> None:
    rows = [["a", "b", 4, "2024-01-01"], ["a", "b", 1, "2024-01-21"], ["c", "b", 2, "2024-01-11"]]
    path = write_table(tmp_path, "csv", rows, ["q", "k", "w", "t"])
    names = {"query": "q", "label": "k", "weight": "w", "time": "t"}
    dataset = from_table(path, **names, test_fraction=0, half_life=10.0)
    assert relevance(dataset) == {("a", "b"): 2.0, ("c", "b"): 1.0}


def test_the_weight_is_scaled_after_it_is_summed(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    names: dict[str, Any] = {"query": "q", "label": "k", "weight": "w", "test_fraction": 0}
    for scale, expected in {"given": 3.5, "binary": 1.0, "log": math.log(4.5)}.items():
        found = relevance(from_table(path, **names, relevance=scale))["red shoes", "shoes"]
        assert found == pytest.approx(expected)


def test_a_half_life_needs_times_and_weights(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    with pytest.raises(InvalidInput, match="needs a column of times: --time"):
        from_table(path, query="q", label="k", half_life=3.0)
    with pytest.raises(InvalidInput, match="positive number of days, not -1"):
        PairOptions(half_life=-1.0)
    with pytest.raises(InvalidInput, match="has no weights that a half-life could change"):
        PairOptions(half_life=1.0, relevance="binary")


def test_one_text_may_have_several_ids_but_not_the_reverse(tmp_path: Path) -> None:
    rows = [["a", "same", 1, "1"], ["b", "same", 1, "2"], ["same", "c", 1, "3"], ["d", "e", 1, "4"]]
    path = write_table(tmp_path, "csv", rows, HEADER)
    dataset = from_table(path, query="q", label="k", label_id="id", test_fraction=0.5)
    assert dataset.labels.texts == ("same", "same", "c", "e")
    assert dataset.train.filtered.nnz + dataset.test.filtered.nnz == 2
    path = write_table(tmp_path, "csv", [*rows, ["f", "other", 1, "1"]], HEADER)
    with pytest.raises(InvalidData, match="'1' has the text 'other', but earlier 'same'"):
        from_table(path, query="q", label="k", label_id="id")


def test_labels_of_test_queries_stay(tmp_path: Path) -> None:
    rows = [[f"query {row}", f"label {row}"] for row in range(40)]
    dataset = from_table(write_table(tmp_path, "csv", rows, ["q", "k"]), query="q", label="k")
    assert len(dataset.labels) == 40
    assert len(dataset.test) == dataset.test.labels_of.nnz > 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), more=st.sets(st.text("xyz", min_size=1), max_size=8))
def test_later_rows_move_no_query(
    tmp_path_factory: pytest.TempPathFactory, seed: int, more: set[str]
) -> None:
    rows = [[f"query {row}", "label"] for row in range(40)]
    sides = []
    for table in (rows, [[text, "new"] for text in sorted(more)] + rows[::-1]):
        path = write_table(tmp_path_factory.mktemp("t"), "csv", table, ["q", "k"])
        dataset = from_table(path, query="q", label="k", seed=seed, test_fraction=0.4)
        sides.append({text for text in dataset.test.instances.texts if text not in more})
    assert sides[0] == sides[1]


def test_the_split_has_the_fraction_and_follows_the_seed() -> None:
    texts = [f"query {row}" for row in range(4000)]
    zero = [is_test(text, fraction=0.2, seed=0) for text in texts]
    one = [is_test(text, fraction=0.2, seed=1) for text in texts]
    assert 0.17 < sum(zero) / 4000 < 0.23
    assert zero != one
    larger = [is_test(text, fraction=0.3, seed=0) for text in texts]
    assert all(b for a, b in zip(zero, larger, strict=True) if a)


@pytest.mark.parametrize("fraction", [1.0, -0.1, 2.0, float("nan")])
def test_a_fraction_out_of_range(tmp_path: Path, fraction: float) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    with pytest.raises(InvalidInput, match="0 or more and below 1"):
        from_table(path, query="q", label="k", test_fraction=fraction)


@pytest.mark.parametrize(("fraction", "side"), [(1e-9, "test"), (1 - 1e-9, "train")])
def test_an_empty_side(tmp_path: Path, fraction: float, side: str) -> None:
    path = write_table(tmp_path, "csv", ROWS, HEADER)
    with pytest.raises(InvalidData, match=f"the split leaves {side} empty: 4 queries"):
        from_table(path, query="q", label="k", test_fraction=fraction)


BAD_ROWS = [
    ("csv", "q,k,w\na,b,1\n,b,1\n", ":3: q: is empty"),
    ("csv", "q,k,w\na, \t ,1\n", ":2: k: is empty"),
    ("csv", "q,k,w\na,b,0\n", ":2: w: '0' is not a positive finite number"),
    ("csv", "q,k,w\na,b,-1\n", ":2: w: '-1' is not a positive finite number"),
    ("csv", "q,k,w\na,b,nan\n", ":2: w: 'nan' is not a positive finite number"),
    ("csv", "q,k,w\na,b,inf\n", ":2: w: 'inf' is not a positive finite number"),
    ("csv", "q,k,w\na,b,\n", ":2: w: '' is not a positive finite number"),
    ("csv", "q,k,w\na,b\n", ":2: 2 fields, but the header has 3"),
    ("csv", "q,k,w\na,b,1,2\n", ":2: 4 fields, but the header has 3"),
    ("csv", 'q,k,w\n"a\nb",c,1\n"d\ne",,1\n', ":4: k: is empty"),
    ("csv", 'q,k,w\na,b,1\n"a,b,1\nc,d,1\n', ":3: not a valid row"),
    ("csv", 'q,k,w\n"a"x,b,1\n', ":2: not a valid row"),
    ("csv", "q,w\na,1\n", ":1: k: is missing; the columns are q, w"),
    ("csv", "q,k,k,w\na,b,c,1\n", ":1: k: occurs more than once; the columns are q, k, k, w"),
    ("csv", "q,k,w\n", ": holds no rows"),
    ("csv", "", ": holds no rows"),
    ("tsv", "q\tk\tw\na\tb\n", ":2: 2 fields, but the header has 3"),
    ("jsonl", '{"q": "a", "k": "b", "w": 1}\n{', ":2: not valid JSON"),
    ("jsonl", '{"q": "a", "w": 1}\n', ":1: k: is missing; the columns are q, w"),
    ("jsonl", '{"q": "a", "k": 3, "w": 1}\n', ":1: k: must be a text, not int"),
    ("jsonl", '{"q": "a", "k": "b", "w": true}\n', ":1: w: True is not a positive"),
    ("jsonl", '{"q": "a", "k": "b", "w": null}\n', ":1: w: None is not a positive"),
    ("jsonl", '["a"]\n', ":1: expected a JSON object, not list"),
    ("jsonl", "", ": holds no rows"),
    ("parquet", "plain text", ":1: cannot be read as parquet"),
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
    assert read.facts.rejected == len(rejects) == 1


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


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_row_that_is_not_utf8_is_rejected(tmp_path: Path, ending: str) -> None:
    path, rejects = write_table(tmp_path, ending, ROWS, HEADER), Rejects()
    path.write_bytes(path.read_bytes().replace(b"hat", b"h\xe9t", 1))
    read = table(path, query="q", label="k", test_fraction=0, on_bad=rejects)
    assert "not valid UTF-8" in str(rejects.rows[0])
    assert read.dataset.train.instances.texts == ("red shoes", "boots", "scarf")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_invalid_utf8_is_named(tmp_path: Path, ending: str) -> None:
    path = write_table(tmp_path, ending, ROWS, HEADER)
    path.write_bytes(path.read_bytes().replace(b"hat", b"h\xe9t"))
    with pytest.raises(InvalidData, match=rf"table\.{ending}:\d: not valid UTF-8"):
        from_table(path, query="q", label="k")


def test_parquet_errors_name_the_row(tmp_path: Path) -> None:
    rows = [["a", "b", 1.0, "1"], ["c", " ", 1.0, "2"]]
    path = write_table(tmp_path, "parquet", rows, HEADER)
    with pytest.raises(InvalidData, match=r"table\.parquet:2: k: is empty"):
        from_table(path, query="q", label="k")
    with pytest.raises(InvalidData, match=r"x: is missing; the columns are q, k, w, id"):
        from_table(path, query="x", label="k")


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(MissingExtra, match=r"pyarrow is not installed: .*keymatch\[training\]"):
        from_table(tmp_path / "t.parquet", query="q", label="k")


@pytest.mark.parametrize("name", ["table.xlsx", "table", "table.parquet.gz", "table.gz"])
def test_an_unknown_ending_names_the_known(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("q,k\na,b\n")
    with pytest.raises(InvalidData, match=r"unknown ending; expected a \.csv, \.tsv or \.jsonl"):
        from_table(tmp_path / name, query="q", label="k")


@pytest.mark.parametrize("ending", FORMATS)
def test_an_absent_file(tmp_path: Path, ending: str) -> None:
    with pytest.raises(InvalidData, match=r"No such file|cannot be read"):
        from_table(tmp_path / f"none.{ending}", query="q", label="k")


def test_quotes_and_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text('q\tk\n"exact phrase"\tb\n\n27" tv\tc\n')
    dataset = from_table(tmp_path / "t.tsv", query="q", label="k", test_fraction=0.5, seed=1)
    assert {query for query, _ in relevance(dataset)} == {'"exact phrase"', '27" tv'}
    (tmp_path / "t.csv").write_text('\ufeffq,k\n"a, ""b""",c\n\nd,e\n')
    for seed in range(9):
        if is_test("d", fraction=0.5, seed=seed) != is_test('a, "b"', fraction=0.5, seed=seed):
            break
    dataset = from_table(tmp_path / "t.csv", query="q", label="k", test_fraction=0.5, seed=seed)
    assert {query for query, _ in relevance(dataset)} == {'a, "b"', "d"}
