"""Runs code as if only some of keymatch's extras were installed."""

import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
HIDDEN = set(sys.argv[1].split())
sys.meta_path.insert(0, Hidden())
del sys.argv[1]
"""


def in_a_process_with(extras: tuple[str, ...], code: str, *arguments: object) -> str:
    """Run code in a new process that finds no package but those of these extras.

    Other packages are installed here for tests, and code must not come to depend on them. Return
    what the code prints.
    """
    ended = subprocess.run(
        [sys.executable, "-c", HIDE + code, " ".join(foreign_to(extras)), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=REPOSITORY,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@cache
def foreign_to(extras: tuple[str, ...]) -> tuple[str, ...]:
    """Return the importable names of all installed packages that these extras do not install."""
    wanted = [("keymatch", ""), *(("keymatch", extra) for extra in extras)]
    known: set[tuple[str, str]] = set()
    while wanted:
        name, extra = one = wanted.pop()
        if one in known:
            continue
        known.add(one)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, required):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                wanted += [(requirement.name, of) for of in ("", *requirement.extras)]
    installed = {_normal(name) for name, _ in known}
    return tuple(
        module
        for module, packages in metadata.packages_distributions().items()
        if installed.isdisjoint(map(_normal, packages))
    )


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
