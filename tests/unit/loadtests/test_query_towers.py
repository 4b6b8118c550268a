"""The curve of query towers: a tiny teacher and its static student, end to end."""

from pathlib import Path

import orjson
import pytest

from loadtests.parts.query_towers import app
from service.command_line import run
from tests.support.tiny.training import tiny_dataset, write_tiny_checkpoint
from training.datasets import lf_xmc


def test_towers_are_distilled_exported_and_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lf_xmc.write(tiny_dataset(), tmp_path / "data")
    teacher = write_tiny_checkpoint(tmp_path / "teacher")
    places = ["--teacher", str(teacher), "--data", str(tmp_path / "data")]
    # Accelerate allows one precision a process, and the other tests train in fp32.
    numbers = ["--layers", "1", "0", "--steps", "2", "--timed", "4", "--precision", "fp32"]
    assert run(app, [*places, "--out", str(tmp_path / "out"), *numbers]) == 0

    rows = orjson.loads((tmp_path / "out" / "query_towers.json").read_bytes())["rows"]
    assert [row["what"] for row in rows] == ["1 layers", "static table"]
    assert all(row["figures"]["median_ms"] > 0 for row in rows)
    assert (tmp_path / "out" / "query_towers-P1.png").is_file()
    assert "static table" in capsys.readouterr().out
