"""Runs the command lines of `service`, `training` and `export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App
from rich.console import Console

from service.core.errors import KeymatchError


def run(app: App, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    A `KeymatchError` becomes one line on stderr and status 2. The line is not wrapped, so that grep
    finds it, and not read as markup, because a path may contain brackets.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = app(tokens, result_action="return_value")
    except KeymatchError as error:
        console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        console.print(f"error: {error}")
        return 2
    return result if isinstance(result, int) else 0
