"""The command `keymatch` in a project whose folders have the names of Keymatch's packages."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir

import psutil
import pytest

from loadtests.resources import process_tree, shard_processes
from service.core.processes.own_code import own_module
from tests.support.cluster_here import need_ray
from tests.support.serving import server_process
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
ENTRY = """
import sys
from keymatch_start import main

if __name__ == "__main__":
    sys.exit(main())
"""  # the script that pip writes


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The console script, for a shop that has folders with the names of our packages.

    They are in the working directory and first on PYTHONPATH.
    """
    shop = tmp_path / "project"
    for name in ("service", "training", "export"):
        (shop / name).mkdir(parents=True)
        (shop / name / "__init__.py").write_text("raise SystemExit('not mine')\n")
    monkeypatch.chdir(shop)
    hidden = subprocess.run([sys.executable, "-m", "service"], capture_output=True, text=True)
    assert "not mine" in hidden.stderr
    monkeypatch.setenv("PYTHONPATH", f"{shop}{os.pathsep}{os.pathsep}{ROOT}")
    (tmp_path / "bin").mkdir()
    # As the wheel installs it, see `force-include` in pyproject.toml.
    shutil.copy(ROOT / "service/start.py", tmp_path / "bin/keymatch_start.py")
    (tmp_path / "bin/keymatch").write_text(ENTRY)
    return tmp_path / "bin/keymatch"


@pytest.mark.parametrize("words", ["--version", "data --help", "export --help", "lab recipes"])
def test_commands_of_all_packages_run(script: Path, words: str) -> None:
    command = [sys.executable, script, *words.split()]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert words != "--version" or ended.stdout.strip() == version("keymatch")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_server_starts_all_its_child_processes(
    script: Path, tiny_bundle_folder: Path, tmp_path: Path, workers: int
) -> None:
    options = ("--workers", str(workers), "--bundles", str(tmp_path / "bundles"))
    (tmp_path / "bundles").mkdir()
    places = (tiny_bundle_folder, tmp_path / "state", tmp_path / "log")
    with server_process(*places, *options, program=(str(script),)) as server:
        labels = [{"text": f"keyword {number}"} for number in range(40)]
        server.client.post("/labels", json={"labels": labels}).raise_for_status()
        server.client.post("/admin/snapshot", json={"bundle": "next"}).raise_for_status()
        assert (tmp_path / "bundles/next/manifest.json").is_file()
        server.client.post("/admin/reload", json={"bundle": "next"}).raise_for_status()
        asked = {"queries": ["keyword 7"], "top_k": 1}
        wait_for(lambda: server.client.post("/predict", json=asked).status_code == 200)
        answer = server.client.post("/predict", json=asked).json()
        assert answer["results"][0]["keywords"][0]["text"] == "keyword 7"
        assert server.stop() == 0


def test_the_path_of_a_child_has_the_own_packages_first(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard library comes before them, and PYTHONPATH last."""
    shown = own_module("tests.support.show_path")
    path = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.splitlines()
    assert path[0] != str(script.parent)
    [own, shop] = path.index(str(ROOT)), path.index(str(Path.cwd()))
    assert path.index(str(Path(os.__file__).parent)) < own < shop == len(path) - 1
    monkeypatch.chdir(ROOT)
    ended = subprocess.run(
        [sys.executable, "-m", "service", "--help"], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr  # the working directory is a checkout


def test_shards_run_their_own_code(script: Path, tiny_bundle_folder: Path, tmp_path: Path) -> None:
    """Ray would put the working directory first."""
    need_ray()
    options = ("--workers", "1", "--shards", "1")
    places = (tiny_bundle_folder, tmp_path / "state", tmp_path / "log")
    environment = {"RAY_TMPDIR": gettempdir()}  # paths of sockets must be short
    with server_process(*places, *options, program=(str(script),), env=environment) as server:
        answer = server.client.post("/predict", json={"queries": ["boots"]})
        assert answer.status_code == 200
        [shard] = shard_processes(server.pid)
        addresses = {host for pid in process_tree(server.pid) for host in listening(pid)}
        assert addresses == {"127.0.0.1"}
        assert shard in process_tree(server.pid)


def listening(pid: int) -> Iterator[str]:
    """The addresses at which a process listens."""
    with suppress(psutil.Error):
        for connection in psutil.Process(pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                yield connection.laddr.ip.removeprefix("::ffff:")
