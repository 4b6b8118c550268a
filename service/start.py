"""Starts this program's own code, whatever else Python's path has under its packages' names.

PYTHONPATH and the working directory may have folders named `service`, `training` or `export`, too.
So this file imports nothing of them. It is installed as `keymatch_start`, a name that no other
project has, for the command `keymatch`. Child processes run it by its path.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterable, Iterator

_OWN = os.path.join("service", "keymatch.py")  # a file that tells our `service` from others


def main() -> int:
    """Run the command `keymatch` of this process's arguments; returns its exit status."""
    put_first(_own_root())
    from service.keymatch import main as keymatch

    return keymatch()


def put_first(root: str) -> None:
    """Let imports look into `root` right after the standard library, and into PYTHONPATH last.

    Packages of this environment then come before those of PYTHONPATH, too. Child processes that
    Python itself starts get this path.
    """
    path = [one for one in _ordered(sys.path) if one != root]
    library = os.path.dirname(os.__file__)
    places = [at for at, one in enumerate(path) if one in (library, f"{library}/lib-dynload")]
    path.insert(max(places, default=-1) + 1, root)
    sys.path[:] = path


def _own_root() -> str:
    """Return the folder that holds our packages: near this file, or else on the path."""
    here = os.path.dirname(os.path.abspath(__file__))
    return next(_holders([here, os.path.dirname(here), *_ordered(sys.path)]), here)


def _ordered(path: Iterable[str]) -> list[str]:
    """Return the folders of a path, those of PYTHONPATH last."""
    given = {os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    return sorted(path, key=lambda one: "PYTHONPATH" in os.environ and one in given)


def _holders(folders: Iterable[str]) -> Iterator[str]:
    return (folder for folder in folders if os.path.isfile(os.path.join(folder, _OWN)))


if __name__ == "__main__":  # start.py MODULE ARGUMENT ...
    put_first(_own_root())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
