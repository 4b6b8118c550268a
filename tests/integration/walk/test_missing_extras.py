"""Without extras, every command shows its help, and a call says what to install."""

import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from export.__main__ import app as export
from service.__main__ import app as service
from service.keymatch import keymatch
from tests.support.commands import every_command
from training.__main__ import app as training

ROOT = Path(__file__).parents[3]
APPS = {
    "service": service, "training": training, "export": export, "keymatch": keymatch(),
}  # fmt: skip
HELP = """
import contextlib, importlib, io, json, sys
from service.command_line import run
from service.keymatch import keymatch

room = sys.argv[1]
app = keymatch() if room == "keymatch" else importlib.import_module(f"{room}.__main__").app

for words in json.loads(sys.argv[2]):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert run(app, [*words, "--help"]) == 0, words
    assert shown.getvalue().startswith(" ".join(["Usage:", room, *words])), words
"""
FAISS, SCIPY = (
    f"{package} is not installed: in keymatch's checkout, pip install"
    for package in ("faiss", "scipy")
)
CALLS = {
    "service.keymatch serve --bundle none --state none": f"{FAISS} '.[cpu]'",
    "service.keymatch data pairs --input x --query q --label k --out y": (f"{SCIPY} '.[training]'"),
    "training fit --data none --out none": f"{SCIPY} '.[training]'",
    "service.keymatch lab train rae --data none --out none": f"{SCIPY} '.[training]'",
    "service.keymatch export bundle --encoder none --data none --out none": (
        f"{SCIPY} '.[export]'"
    ),
}
Bare = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """Runs Python in an environment that has only the base dependencies."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    install = [python, "-m", "pip", "install", "-q", *project["dependencies"]]
    installed = subprocess.run(install, capture_output=True, text=True)
    if installed.returncode != 0:
        reason = f"NOT TESTED: pip installs nothing here: {installed.stderr[-300:]}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *arguments], capture_output=True, text=True, cwd=folder, env=environment
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("room", APPS)
def test_every_command_shows_its_help(bare: Bare, room: str) -> None:
    commands = [words for words, _ in every_command(APPS[room])]
    ended = bare("-c", HELP, room, json.dumps(commands))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", CALLS)
def test_a_command_says_what_to_install(bare: Bare, command: str) -> None:
    ended = bare("-m", *command.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"error: {CALLS[command]}\n"


@pytest.mark.slow
def test_a_command_that_needs_no_extra_runs(bare: Bare) -> None:
    ended = bare("-m", "service.keymatch", "key", "--name", "shop", "--scope", "read")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("shop:read:")


def test_the_parts_of_an_installed_package_are_never_stood_in_for() -> None:
    """faiss tries to import a module that only its other builds have."""
    code = "from service.__main__ import app; from service.command_line import run; run(app, [])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")
