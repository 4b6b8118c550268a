"""A capability is one room: without diversity, a copy of the service answers everything else."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[2]
ROOM = "service/core/prediction/diversity.py"
DECLARATION = "service/core/options.py"
LIST = "service/core/prediction/predictor.py"
QUERIES = "a red lamp\nquick temper\n"


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the service without the room, its option, and its lines in the list of stages."""
    copy = tmp_path_factory.mktemp("smaller")
    copytree(ROOT / "service", copy / "service", ignore=ignore_patterns("__pycache__"))
    (copy / ROOM).unlink()
    option = re.compile(r"^    diversity: .*?^    \)\n", re.MULTILINE | re.DOTALL)
    declared, count = option.subn("", (copy / DECLARATION).read_text())
    assert count == 1
    (copy / DECLARATION).write_text(declared)
    lines = (copy / LIST).read_text().splitlines(keepends=True)
    others = [line for line in lines if "divers" not in line.lower()]
    assert len(lines) - len(others) == 3  # the import, the condition, the stage
    (copy / LIST).write_text("".join(others))
    return copy


def predict(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service", "predict", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_rest_answers_as_before(
    smaller: Path, tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    queries, answers = tmp_path / "queries.txt", list[bytes]()
    queries.write_text(QUERIES)
    for number, folder in enumerate((ROOT, smaller)):
        out = tmp_path / f"{number}.jsonl"
        asked = ("--bundle", str(tiny_bundle_folder), "--input", str(queries), "--out", str(out))
        done = predict(folder, *asked, "--explain")
        assert done.returncode == 0, done.stderr
        answers.append(out.read_bytes())
    assert answers[0] == answers[1]
    assert answers[0].count(b"\n") == 2


def test_its_option_is_gone(smaller: Path) -> None:
    assert "--diversity" in predict(ROOT, "--help").stdout
    helped = predict(smaller, "--help").stdout
    assert "--diversity" not in helped
    assert "--min-confidence" in helped
