"""The command line of `keymatch lab peer`."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("bm25s", reason="NO PEER RUN: bm25s is not installed")

from service.command_line import run
from tests.support.tiny.training import tiny_dataset
from training.__main__ import app
from training.datasets import lf_xmc
from training.evaluation import results
from training.lab.commands.peer import assignments


def peer(name: str, data: Path, out: Path, *more: str) -> int:
    return run(app, ["peer", name, "--data", str(data), "--out", str(out), *more])


def test_it_writes_results_and_never_replaces_any(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peer("bm25", data, tmp_path / "out", "--set", "k1=1.2", "variant=robertson") == 0
    before = (tmp_path / "out" / results.FILE).read_bytes()
    found = results.read(tmp_path / "out")
    assert (found.name, found.system, found.dataset) == ("bm25", "BM25", "colours")
    assert found.settings == {"variant": "robertson", "k1": 1.2, "b": 0.75}
    assert found.training_seconds is not None
    assert found.training_seconds > 0.0
    assert found.hardware["device"]
    assert set(found.hardware["libraries"]) == {"bm25s", "numpy"}
    [result] = found.results
    assert result.chosen
    assert np.mean(found.rows[:, 0]) * 100.0 == pytest.approx(result.metrics["P@1"])
    assert f"{tmp_path / 'out'}: bm25 by label words" in capsys.readouterr().out

    assert peer("bm25", data, tmp_path / "out", "--set", "b=0.1") == 2
    assert "results.json: exists already" in capsys.readouterr().err
    assert (tmp_path / "out" / results.FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("fastxml", (), "'fastxml' is unknown; there are bm25, omikuji, xr-linear, plt, mnrl"),
        ("bm25", ("--set", "b=2"), "peer bm25: b: must be at most 1"),
        ("bm25", ("--set", "k1"), "--set takes key=value, not 'k1'"),
        ("bm25", ("--set", "=1"), "--set takes key=value, not '=1'"),
    ],
)
def test_mistakes_are_one_line(
    name: str,
    more: tuple[str, ...],
    message: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert peer(name, data, tmp_path / "out", *more) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_rows_that_stand_in_both_splits_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tiny_dataset()
    object.__setattr__(dataset, "test", dataset.train)
    lf_xmc.write(dataset, tmp_path / "same")

    assert peer("bm25", tmp_path / "same", tmp_path / "out") == 2
    assert "is also test row" in capsys.readouterr().err
    assert peer("bm25", tmp_path / "same", tmp_path / "out", "--allow-test-rows") == 0


def test_assignments() -> None:
    given = ["a=1", "b = 0.5", "c=text", 'd="1"', "e=true"]
    assert assignments(given) == {"a": 1, "b": 0.5, "c": "text", "d": "1", "e": True}
