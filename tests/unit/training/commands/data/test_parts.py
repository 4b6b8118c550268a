"""`keymatch data pairs` reads a table in parts: exactly like one file, in bounded memory."""

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import one_line, status_of
from training.__main__ import app
from training.datasets import lf_xmc, pairs

pyarrow = pytest.importorskip("pyarrow", reason="NOT TESTED: no pyarrow")
parquet = pytest.importorskip("pyarrow.parquet", reason="NOT TESTED: no pyarrow")

COLUMNS = ("--query", "query", "--label", "keyword")
NAMES = ("query", "keyword", "clicks", "day", "shelf")
ROWS: list[tuple[Any, ...]] = [
    (
        f"{'Query' if row % 5 else 'query'} {row % 37}",
        f"keyword {row * row % 11}",
        1 + row % 4,
        f"2024-{1 + row % 12:02}-{1 + row % 28:02}",
        f"shelf {row % 3}|shelf {row % 7}",
    )
    for row in range(400)
]
CUTS = (0, 3, 150, 151, 399, 400)  # the parts' rows, so some parts end within a block
Said = pytest.CaptureFixture[str]


def write(path: Path, rows: Sequence[Sequence[Any]], names: Sequence[str] = NAMES) -> Path:
    """Write a table in the format of the path's ending."""
    if path.suffix == ".parquet":
        columns = zip(*rows, strict=True)
        parquet.write_table(pyarrow.table(dict(zip(names, columns, strict=True))), path)
    elif path.suffix == ".jsonl":
        lines = (json.dumps(dict(zip(names, row, strict=True))) for row in rows)
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        opened = gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w", newline="")
        with opened as file:
            csv.writer(file).writerows([names, *rows])
    return path


def write_parts(folder: Path, ending: str) -> list[Path]:
    folder.mkdir(parents=True)
    bounds = pairwise(CUTS)
    return [
        write(folder / f"part-{number}.{ending}", ROWS[start:end])
        for number, (start, end) in enumerate(bounds)
    ]


def make(out: Path, *inputs: object, options: Sequence[str] = ()) -> int:
    """Run the command."""
    given = ("--input", *inputs, *COLUMNS, *options, "--out", out)
    return status_of(app, "data", "pairs", *given)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("ending", ["parquet", "csv.gz", "jsonl"])
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--weight", "clicks", "--time", "day", "--relevance", "log"),
        ("--weight", "clicks", "--time", "day", "--half-life", "30"),
        ("--metadata", "shelf", "--label-metadata", "shelf", "--keep-case"),
    ],
)
def test_parts_give_the_same_bytes_as_one_table(
    tmp_path: Path, ending: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is read as a single block, parts in blocks of 50 rows; also both in such blocks."""
    # The name of the table is stored, so the folder of parts is called like the file.
    (tmp_path / "whole").mkdir()
    whole = write(tmp_path / "whole" / f"clicks.{ending}", ROWS)
    parts = tmp_path / "parts" / f"clicks.{ending}"
    write_parts(parts, ending)
    (parts / "_SUCCESS").touch()
    assert make(tmp_path / "one" / "data", whole, options=options) == 0
    monkeypatch.setattr(pairs, "BLOCK_ROWS", 50)
    assert make(tmp_path / "two" / "data", parts, options=options) == 0
    assert make(tmp_path / "three" / "data", whole, options=options) == 0
    expected = contents(tmp_path / "one" / "data")
    assert contents(tmp_path / "two" / "data") == expected
    assert contents(tmp_path / "three" / "data") == expected


def test_a_catalogue_counts_the_same(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = write(tmp_path / "w.csv", ROWS), write_parts(tmp_path / "parts", "csv")
    catalogue = tmp_path / "catalogue.csv"
    catalogue.write_text("title\nkeyword 0\nkeyword 1\nkeyword 77\n")
    options = ("--catalogue", str(catalogue), "--catalogue-text", "title")
    assert make(tmp_path / "one", whole, options=options) == 0
    said = capsys.readouterr().out.splitlines()
    monkeypatch.setattr(pairs, "BLOCK_ROWS", 50)
    assert make(tmp_path / "two", *parts, options=options) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0] == f"{parts[0]} and 4 more: 400 rows read from 5 files"
    assert [line.split(": ")[-1] for line in again[1:-2]] == [
        line.replace(str(whole), f"{parts[0]} and 4 more").split(": ")[-1] for line in said[1:-2]
    ]
    assert any("1 of them in no row" in line for line in again)


def test_files_a_folder_and_a_pattern_are_the_same_table(tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "logs" / "2024", "csv")
    named = {
        "files": parts,
        "folder": [tmp_path / "logs"],
        "pattern": [tmp_path / "logs" / "*" / "part-?.csv"],
        "both": [parts[0], tmp_path / "logs" / "2024" / "part-[1-4].csv"],
    }
    found = []
    for name, inputs in named.items():
        assert make(tmp_path / name, *inputs) == 0
        files = contents(tmp_path / name)
        del files["dataset.json"]  # it has the names
        found.append(files)
    assert found == [found[0]] * len(named)


def test_bad_rows_are_listed_with_their_file(tmp_path: Path, capsys: Said) -> None:
    parts = write_parts(tmp_path / "parts", "csv")
    bad = write(tmp_path / "parts" / "part-9.csv", [("boots", "", 1, "2024-01-01", "")])
    skip = ("--on-bad-row", "skip")
    assert make(tmp_path / "data", tmp_path / "parts", options=skip) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"rejected: {bad}:2: keyword: is empty"
    rejects = (tmp_path / "data.rejects.csv").read_text()
    assert rejects == f"file,line,column,reason\n{bad},2,keyword,is empty\n"
    assert make(tmp_path / "again", *parts, bad) == 2
    assert f"{bad}:2: keyword: is empty" in one_line(2, capsys.readouterr().err)


BAD = ("query", "keyword")


def truncated(path: Path) -> None:
    write(path, ROWS)
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("name", "make_bad", "said"),
    [
        ("z.parquet", lambda path: write(path, [("a", "b")], ("query", "label")), "there is no"),
        ("z.parquet", lambda path: write(path, [(1, "b")], BAD), "query: holds numbers, but in"),
        ("z.parquet", lambda path: write(path, [(["a"], "b")], BAD), "query: holds lists of texts"),
        ("z.parquet", truncated, "cannot be read as parquet"),
        ("z.parquet", Path.touch, "cannot be read as parquet"),
        ("z.csv", lambda path: write(path, [("a", "b")], ("query", "label")), "there is no"),
        ("z.csv.gz", lambda path: path.write_bytes(gzip.compress(b"query" * 99)[:20]), "cut short"),
        ("z.jsonl", lambda path: path.write_text('{"query": "a"}\n'), "there is no"),
        ("z.doc", Path.touch, "unknown ending"),
    ],
)
def test_a_bad_part_is_one_sentence_that_names_it(
    name: str, make_bad: Any, said: str, tmp_path: Path, capsys: Said
) -> None:
    parts = tmp_path / "parts"
    write_parts(parts, "parquet")
    make_bad(parts / name)
    line = one_line(make(tmp_path / "data", parts), capsys.readouterr().err)
    assert line.startswith(str(parts / name)) and said in line
    assert not (tmp_path / "data").exists()


def test_no_part_and_a_part_named_twice_are_one_sentence(tmp_path: Path, capsys: Said) -> None:
    def refused(*inputs: object) -> str:
        return one_line(make(tmp_path / "data", *inputs), capsys.readouterr().err)

    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    assert "empty: is a folder without files of a table" in refused(tmp_path / "empty")
    assert "*.csv: no file matches this pattern" in refused(tmp_path / "*.csv")
    [first, *_] = write_parts(tmp_path / "parts", "csv")
    twice = refused(tmp_path / "parts", first)
    assert f"{first}: is named twice, so its rows would count twice" in twice
    assert "nowhere.csv: cannot be read: No such file" in refused(tmp_path / "nowhere.csv")


def test_a_column_may_be_null_or_an_integer_in_some_parts(tmp_path: Path) -> None:
    names = ("query", "keyword", "clicks")
    write(tmp_path / "a.parquet", [("a", "b", 2)], names)
    write(tmp_path / "b.parquet", [("a", "b", None)], names)
    write(tmp_path / "c.parquet", [("a", "b", 0.5)], names)
    options = ("--weight", "clicks", "--test-fraction", "0")
    assert make(tmp_path / "data", tmp_path / "*.parquet", options=options) == 0
    assert lf_xmc.read(tmp_path / "data").train.labels_of.data.tolist() == [3.5]


# The kernel counts a child's ru_maxrss from before its exec, so the child reads its own peak.
PEAK = """
import sys
from pathlib import Path
from training.datasets import pairs
from service.keymatch import main
pairs.BLOCK_ROWS = int(sys.argv.pop(1))
try:
    main()
finally:
    [peak] = [line for line in Path("/proc/self/status").open() if line.startswith("VmHWM")]
    print(peak.split()[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """500,000 further rows need no memory, unless they are all in one block."""
    block = [(f"query {row % 1000}", f"keyword {row % 100}") for row in range(50_000)]
    for number in range(12):
        write(tmp_path / f"part-{number:02}.parquet", block, ("query", "keyword"))

    def peak(pattern: str, block_rows: int) -> float:
        out = tmp_path / f"data-{len(list(tmp_path.iterdir()))}"
        given = ("data", "pairs", "--input", tmp_path / pattern, *COLUMNS, "--out", out)
        command = [sys.executable, "-c", PEAK, str(block_rows), *map(str, given)]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(ended.stdout.splitlines()[-1]) / 1000

    few, many = "part-0[01].parquet", "part-??.parquet"
    in_blocks = peak(many, 20_000)
    assert in_blocks - peak(few, 20_000) < 8  # MB
    assert peak(many, 10**9) - in_blocks > 12
