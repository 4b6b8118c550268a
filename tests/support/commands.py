"""Command lines as users run them, and the one line that a refused one says."""

import os
import subprocess
import sys
from collections.abc import Callable

from cyclopts import App

from service import command_line

Refused = Callable[..., str]
WIDE = {"COLUMNS": "300"}  # so that a message is not wrapped


def run(*arguments: object, seconds: int = 120) -> subprocess.CompletedProcess[str]:
    """`python -m ARGUMENTS` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **WIDE},
    )


def complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """What a refused command said."""
    return one_line(ended.returncode, ended.stderr)


def status_of(app: App, *arguments: object) -> int:
    """The exit status of a command that runs in this process, by the packages' own `run`."""
    try:
        return command_line.run(app, [*map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def one_line(status: int, stderr: str) -> str:
    """The only line but those of the log; wrong arguments stand in a box."""
    assert status in (1, 2), stderr
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if not line.startswith('{"time"')]
    lines = [line.strip("│ ") for line in lines if line[0] not in "╭╰"]
    assert len(lines) == 1, stderr
    return lines[0].removeprefix("error: ")
