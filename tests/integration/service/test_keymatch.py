"""The command `keymatch` in a project whose folders have the names of Keymatch's packages."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from service.__main__ import app as service
from tests.support.commands import Refused
from tests.support.serving import server_process
from tests.support.waiting import wait_for
from training.__main__ import app as training

ROOT = Path(__file__).parents[3]
ENTRY = """
import sys
from service.keymatch import main

if __name__ == "__main__":
    sys.exit(main())
"""  # the script that pip writes


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The console script; the working directory has folders with the names of our packages."""
    for name in ("service", "training", "export"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").write_text("raise SystemExit('not mine')\n")
    monkeypatch.chdir(tmp_path / "project")
    hidden = subprocess.run([sys.executable, "-m", "service"], capture_output=True, text=True)
    assert "not mine" in hidden.stderr
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # as if it were installed
    (tmp_path / "bin").mkdir()
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


def test_options_of_earlier_names_are_understood(tmp_path: Path, refused: Refused) -> None:
    places = ("--data", tmp_path / "none", "--out", tmp_path / "out")
    for old in ("--from", "no/such/encoder"), ("--from=no/such/encoder",):
        assert "'no/such/encoder' cannot be loaded" in refused(training, "fit", *places, *old)
    said = refused(training, "report", "--runs", tmp_path / "none", "--out", tmp_path / "out")
    assert "none" in said and "--runs" not in said
    bundles = ("--bundle", tmp_path / "a", "--bundle", tmp_path / "b")
    queries = ("--queries", tmp_path / "q.csv", "--query", "q", "--out", tmp_path / "page.html")
    assert "is not a bundle" in refused(service, "compare", *bundles, *queries)
