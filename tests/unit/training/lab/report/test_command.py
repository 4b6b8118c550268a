"""`keymatch lab report` on the command line."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import one_line, status_of
from training.__main__ import app


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    return one_line(status_of(app, "report", *arguments), capsys.readouterr().err)


def test_a_page(run: Any, peer: Any, written: Any, tmp_path: Path) -> None:
    out = tmp_path / "report"
    folders = [written(run()), written(peer)]
    assert status_of(app, "report", "--run", *folders, "--out", out) == 0
    assert [path.name for path in out.iterdir()] == ["report.html"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "bm25" in page
    assert str(tmp_path) not in page


def test_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--out", tmp_path / "new") == (
        "--run: name at least one folder with results"
    )


def test_a_folder_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refused(capsys, "--run", tmp_path, "--out", tmp_path / "new")
    assert complaint.startswith(f"{tmp_path / 'results.json'}: cannot be read")
    assert not (tmp_path / "new").exists()


def test_the_same_run_twice(
    run: Any, written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(run())
    complaint = refused(capsys, "--run", folder, folder, "--out", tmp_path / "new")
    assert "are both named 'rae'" in complaint


def test_an_existing_folder(
    run: Any, written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complaint = refused(capsys, "--run", written(run()), "--out", tmp_path)
    assert complaint.startswith(f"{tmp_path}: exists already")
