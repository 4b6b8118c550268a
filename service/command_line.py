"""Runs the command lines of `service`, `training` and `export`, and makes their consoles."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App
from rich.console import Console

from service.core.errors import KeymatchError


def run(app: App, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    A `KeymatchError` becomes one line on stderr and status 2. The line is not wrapped, so that grep
    finds it. So does an error of the operating system that names a file (no permission, a full
    disk), with status 1; any other error is a mistake in the program, and keeps its traceback.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = app(tokens, result_action="return_value")
    except KeymatchError as error:
        return _failed(str(error), status=2)
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        return _failed(f"{error.filename}: {error.strerror}", status=1)
    return result if isinstance(result, int) else 0


def open_console(*, stderr: bool = False) -> Console:
    """A console that prints every text as it is.

    To rich, brackets in a path are markup, and the line number of `x.csv:100:` is an emoji.
    """
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def _failed(message: str, *, status: int) -> int:
    open_console(stderr=True).print(f"error: {message}", soft_wrap=True)
    return status
