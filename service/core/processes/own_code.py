"""Starts a module of this program in a child process that runs the same code."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]  # the folder that holds `service`
# `python -m` would import a folder named `service` in the working directory instead.
_RUN = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3];"
    " root in sys.path or sys.path.insert(0, root);"
    " runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def own_module(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module, such as `service.engine.trial`, with arguments."""
    return [sys.executable, "-P", "-c", _RUN, str(_ROOT), module, *map(str, arguments)]
