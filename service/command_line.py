"""How all three packages run a command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App
from rich.console import Console

from service.core.errors import KeymatchError


def run(app: App, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    An error that was raised on purpose is one line on stderr and status 2. It is neither wrapped
    nor read as markup: a path may hold brackets, and a message is one line to grep.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = app(tokens, result_action="return_value")
    except KeymatchError as error:
        console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        console.print(f"error: {error}")
        return 2
    return result if isinstance(result, int) else 0
