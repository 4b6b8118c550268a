"""The row order of the novel labels' table; the committed page shows the whole section."""

from pathlib import Path

import orjson
import pytest

from service.core.errors import InvalidData
from training.lab.report.quality.novel_tables import FOLDER, novel_section

SPLIT = {"fraction": 0.1, "novel": 100, "seen": 900}


def test_methods_in_the_order_of_the_settings(tmp_path: Path) -> None:
    """A method without a defined place comes last in its setting."""
    rows = [
        ("one-shot", "all", "irene+instance"),
        ("zero-shot", "all", "irene+memory"),
        ("zero-shot", "novel", "my own"),
        ("zero-shot", "novel", "irene"),
    ]
    metrics = {"P@1": 1.0, "P@5": 2.0, "R@30": 3.0}
    names = ("setting", "candidates", "method")
    document = [dict(zip(names, row, strict=True), metrics=metrics) for row in rows]
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "colours.json").write_bytes(
        orjson.dumps({"split": SPLIT, "rows": document})
    )
    lines = "\n".join(novel_section(tmp_path)).splitlines()
    assert "colours: 100 novel labels of 1,000." in lines
    figures = "1.00 | 2.00 | 3.00 |"
    assert [line for line in lines if line.endswith(figures)] == [
        f"| zero-shot | novel | **IRENE, C(u)** | {figures}",
        f"| zero-shot | novel | my own | {figures}",
        f"| zero-shot | all | IRENE, in the memory: what is served | {figures}",
        f"| one-shot | all | IRENE and instance row: what is served | {figures}",
    ]


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert list(novel_section(tmp_path)) == []


@pytest.mark.parametrize("content", ["{", "[]", '{"split": {}}'])
def test_damaged_files_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "moby.json").write_text(content)
    with pytest.raises(InvalidData, match=r"moby\.json"):
        list(novel_section(tmp_path))
