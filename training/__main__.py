"""`python -m training`: everything that happens before a bundle is exported."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App
from rich.console import Console

from service.core.errors import KeymatchError
from training import data
from training.evaluate import evaluate

app = App(name="training", help="Keymatch offline: data sets, training and evaluation.")
app.command(data.app)
app.command(evaluate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 2 for an error that the user can act on."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = app(tokens, result_action="return_value")
    except KeymatchError as error:
        # No markup and no wrapping: a path may hold brackets, and a message is one line to grep.
        console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        console.print(f"error: {error}")
        return 2
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
