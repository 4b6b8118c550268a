"""A command that a signal ends while it works reports it and leaves no partial output."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from export.__main__ import app as export
from tests.support.commands import status_of
from training.__main__ import app as training

DEMO = Path(__file__).parents[3] / "deploy/demo/encoder"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.csv"
    path.write_text("query,keyword\n" + "".join(f"tent {n},tent\n" for n in range(60)))
    return path


def prepared(table: Path, out: Path) -> int:
    columns = ("--query", "query", "--label", "keyword")
    return status_of(training, "data", "pairs", "--input", table, *columns, "--out", out)


def signal_after(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Wrap `function`: the signal is sent after its work."""

    def called(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        os.kill(os.getpid(), number)
        return result

    return called


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["data pairs", "export bundle", "evaluate"])
def test_nothing_half_written_is_left(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    moment: str,
) -> None:
    data, bundle, out = tmp_path / "data", tmp_path / "bundle", tmp_path / "out"
    assert prepared(table, data) == 0
    if moment == "evaluate":
        made = ("bundle", "--encoder", DEMO, "--data", data, "--out", bundle)
        assert status_of(export, *made) == 0
    before = {path.name for path in tmp_path.iterdir()}
    module, name = {
        "data pairs": ("training.datasets.lf_xmc.folder", "write_lines"),
        "export bundle": ("export.bundle.build", "encode_resumably"),
        "evaluate": ("training.commands.score", "open_evaluation"),
    }[moment]
    target = __import__(module, fromlist=[name])
    monkeypatch.setattr(target, name, signal_after(getattr(target, name), number))
    commands: dict[str, tuple[App, tuple[object, ...]]] = {
        "export bundle": (export, ("bundle", "--encoder", DEMO, "--data", data, "--out", out)),
        "evaluate": (training, ("score", "--bundle", bundle, "--data", data, "--json", out)),
    }
    capsys.readouterr()
    if moment == "data pairs":
        status = prepared(table, out)
    else:
        app, arguments = commands[moment]
        status = status_of(app, *arguments)
    assert status == 128 + number
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {number.name}: the command was stopped before its output")
    left = {path.name for path in tmp_path.iterdir()} - before
    assert left <= {".out.encoding"}  # finished vectors, which a second try reuses
