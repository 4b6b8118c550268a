"""Run command lines like a user, and read the one line that a refused command prints."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from cyclopts import App

from service import command_line

Refused = Callable[..., str]
WIDE = {"COLUMNS": "300"}  # prevents line breaks in messages


def run(*arguments: object, seconds: int = 120) -> subprocess.CompletedProcess[str]:
    """Run `python -m ARGUMENTS` in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **WIDE},
    )


def program(name: str, *, package: str) -> str:
    """Return the path of a program of this package; if missing, fail in CI, else skip the test."""
    path = shutil.which(name)
    if path is None:
        message = f"NOT TESTED: {name} is not installed; the package {package} has it"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    return path


def complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the error message of a refused command."""
    return one_line(ended.returncode, ended.stderr)


def status_of(app: App, *arguments: object) -> int:
    """Run a command in this process with the packages' `run`; return its exit status."""
    try:
        return command_line.run(app, [*map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def every_command(app: App, *above: str) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield the words of each command and command group, with its application."""
    yield above, app
    for name in app:
        if not name.startswith("-"):
            yield from every_command(app[name], *above, name)


def one_line(status: int, stderr: str) -> str:
    """Return the only line that is no log line; errors about arguments are framed by a box."""
    assert status in (1, 2), stderr
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if not line.startswith('{"time"')]
    lines = [line.strip("│ ") for line in lines if line[0] not in "╭╰"]
    assert len(lines) == 1, stderr
    return lines[0].removeprefix("error: ")
