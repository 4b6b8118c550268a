"""Commands print an error as one line, and texts unchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App
from rich.table import Table

from service.command_line import open_console, run, say
from service.core.errors import InvalidData
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk

ROOT = Path(__file__).parents[3]
ROOMS = ("service", "training", "export", "loadtests", "deploy")
PRINTS = """
import sys
from cyclopts import App
from service.command_line import open_console, run
app = App(name="prints")
app.default(lambda: open_console().print("words"))
sys.exit(run(app, []))
"""
PLACE = "bad100.csv:100: [bold]"  # rich would show an emoji and bold text


def failing(error: Exception) -> App:
    app = App(name="failing")

    @app.default
    def fail() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            InvalidData("bad100.csv", "is empty", line=100, field="[q]"),
            2,
            "bad100.csv:100: [q]: is empty",
        ),
        (
            PermissionError(13, "Permission denied", "/some/file"),
            1,
            "/some/file: Permission denied",
        ),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch.nn"),
            2,
            "torch is not installed: in keymatch's checkout, pip install '.[failing]'",
        ),
    ],
    ids=["ours", "the system's", "a missing package"],
)
def test_an_error_is_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, status: int, said: str
) -> None:
    assert run(failing(error), []) == status
    assert capsys.readouterr().err == f"error: {said}\n"


def test_a_full_standard_output_is_one_line() -> None:
    command = [sys.executable, "-c", PRINTS]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: standard output: No space left on device\n"


def test_a_full_temporary_folder_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, small_disk: SmallDisk
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(small_disk.folder))
    with small_disk.full():
        assert run(failing(OSError(28, "No space left on device")), []) == 1
    assert capsys.readouterr().err == f"error: {small_disk.folder}: No space left on device\n"


def test_a_mistake_in_the_program_keeps_its_traceback() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    ours = ModuleNotFoundError("No module named 'service.x'", name="service.x")
    for error in (ZeroDivisionError(), OSError("no file and no number"), refused, ours):
        with pytest.raises(type(error)):
            run(failing(error), [])


def test_a_console_prints_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("file")
    table.add_row(PLACE)
    open_console().print(PLACE)
    open_console().print(table)
    open_console(quiet=True).print(PLACE)
    say(PLACE, 9 * PLACE, stderr=True)
    printed = capsys.readouterr()
    assert printed.out.count(PLACE) == 2
    assert printed.err == f"{PLACE}\n{9 * PLACE}\n"


def test_all_commands_use_that_console() -> None:
    made = re.compile(r"\bConsole\(|from rich import print|\brich\.print\(")
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(sources) > 400
    elsewhere = [str(path.relative_to(ROOT)) for path in sources if made.search(path.read_text())]
    assert elsewhere == ["service/command_line.py"]
