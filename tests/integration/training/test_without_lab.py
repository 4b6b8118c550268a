"""A wheel has no `training/lab`: neither its commands nor a need of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.keymatch import LAB
from tests.support.tiny.training import tiny_dataset, write_recipe, write_tiny_checkpoint
from training.datasets import lf_xmc

ROOT = Path(__file__).parents[3]
RUN_ALL = """
import sys
from pathlib import Path

import training
from export.__main__ import app as export
from service.command_line import run
from training.__main__ import app

assert Path(training.__file__).parent.parent == Path.cwd(), training.__file__
assert run(app, ["recipes"]) == 0
data = ["--data", "data"]
for words in (
    ["train", "rae.toml", *data, "--out", "run"],
    ["score", *data, "--run", "run"],
    ["rerank", *data, "--run", "run", "--out", "reranked"],
    ["fit", *data, "--out", "fitted", "--encoder", "model", "--minutes", "0.1"],
    ["score", *data, "--run", "fitted"],
):
    assert run(app, words) == 0, words
assert run(export, ["encoder", "--encoder", "run/best", *data, "--out", "encoder"]) == 0
assert run(export, ["bundle", "--encoder", "encoder", *data, "--out", "bundle"]) == 0
assert run(app, ["score", *data, "--bundle", "bundle"]) == 0
assert not [name for name in sys.modules if name.startswith("training.lab")]
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The folder of a copy of the packages without the laboratory."""
    left_out = shutil.ignore_patterns("lab", "__pycache__")
    for package in ("service", "training", "export"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=left_out)
    assert not (tmp_path / "training/lab").exists()
    return tmp_path


def test_commands_of_the_laboratory_do_not_exist(packages: Path) -> None:
    def called(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "service.keymatch", "lab", *words]
        return subprocess.run(command, cwd=packages, capture_output=True, text=True)

    listed = called("--help").stdout
    assert {name for name in LAB if f"│ {name} " in listed} == {"recipes", "train", "rerank"}
    assert "unidec-quick" in called("recipes").stdout
    assert called("peer", "--help").returncode == 2


@pytest.mark.slow
def test_the_product_runs_without_the_laboratory(packages: Path) -> None:
    write_tiny_checkpoint(packages)
    write_recipe(packages, model=Path("model"))
    lf_xmc.write(tiny_dataset(), packages / "data")
    ended = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        cwd=packages,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
