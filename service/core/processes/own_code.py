"""Starts a module of this program in a child process that runs the same code."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]  # the folder that holds `service`
_STARTS = ROOT / "service" / "start.py", ROOT / "keymatch_start.py"  # of a checkout, of a wheel


def own_module(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module, such as `service.engine.trial`, with arguments.

    `python -m` would import a folder named `service` in the working directory, or on PYTHONPATH.
    """
    start = next(path for path in _STARTS if path.exists())
    return [sys.executable, "-P", str(start), module, *map(str, arguments)]
