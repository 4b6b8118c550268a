"""`python -m training report`, as users run it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import one_line, status_of
from training.__main__ import app

PANELS = (
    "plane-PSP1",
    "plane-PSP5",
    "lambda-P1",
    "lambda-P5",
    "b-P1",
    "b-P5",
    "b-R100",
    "time-1",
)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    return one_line(status_of(app, "report", *arguments), capsys.readouterr().err)


def test_a_page_and_its_pictures(run: Any, peer: Any, written: Any, tmp_path: Path) -> None:
    out = tmp_path / "report"
    folders = [written(run()), written(peer)]
    assert status_of(app, "report", "--runs", *folders, "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [
            "report.html",
            *(f"colours-{panel}{theme}.png" for panel in PANELS for theme in ("", "-dark")),
        ]
    )
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "bm25" in page
    assert str(tmp_path) not in page


def test_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--out", tmp_path / "new") == (
        "--runs: name at least one folder with results"
    )


def test_a_folder_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refused(capsys, "--runs", tmp_path, "--out", tmp_path / "new")
    assert complaint.startswith(f"{tmp_path / 'results.json'}: cannot be read")
    assert not (tmp_path / "new").exists()


def test_the_same_run_twice(
    run: Any, written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(run())
    complaint = refused(capsys, "--runs", folder, folder, "--out", tmp_path / "new")
    assert "are both named 'rae'" in complaint


def test_an_existing_folder(
    run: Any, written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complaint = refused(capsys, "--runs", written(run()), "--out", tmp_path)
    assert complaint.startswith(f"{tmp_path}: exists already")
