"""The opponents' own virtual environment, since their packages are no part of Keymatch's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from service.core.errors import CommandFailed

_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
def known(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({name: known(name) for name in sys.argv[1:]}))
"""


def prepared_environment(
    folder: Path, requirements: Iterable[str], *, console: Console
) -> tuple[Path, dict[str, str]]:
    """The environment's interpreter, and the version of each required package.

    What is missing is installed first. Raises `CommandFailed` if that does not succeed.
    """
    python, wanted = folder.absolute() / "bin/python", sorted(set(requirements))
    if not python.exists():
        console.print(f"making the environment {folder} ...")
        _run([sys.executable, "-m", "venv", str(folder)], "no virtual environment could be made")
    if None in _versions(python, wanted).values():
        console.print(f"installing {', '.join(wanted)} ...")
        install = [str(python), "-m", "pip", "install", "--only-binary", ":all:", *wanted]
        _run(install, "the opponents' packages could not be installed")
    versions = _versions(python, wanted)
    return python, {name: version for name, version in versions.items() if version is not None}


def package_name(requirement: str) -> str:
    """The name in a requirement: `uvicorn` of `uvicorn[standard]>=0.40,<0.60`."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _versions(python: Path, requirements: Sequence[str]) -> Mapping[str, str | None]:
    names = [package_name(requirement) for requirement in requirements]
    shown = _run([str(python), "-c", _VERSIONS, *names], f"{python} does not run")
    versions: dict[str, str | None] = json.loads(shown)
    return versions


def _run(command: Sequence[str], failure: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except OSError as error:
        raise CommandFailed(f"{failure}: {error}") from error
    except subprocess.CalledProcessError as error:
        raise CommandFailed(f"{failure}:\n{error.stderr[-2_000:]}") from error
    return done.stdout
