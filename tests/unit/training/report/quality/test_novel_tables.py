"""The tables of novel labels: every method, and what a second ranking does to them."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from service.core.errors import InvalidData
from training.report.quality.novel_tables import FOLDER, novel_section

SPLIT = {"fraction": 0.1, "novel": 100, "seen": 900}


def metrics(value: float) -> dict[str, float]:
    names = ("P@1", "P@5", "R@30", "novel_R@5", "novel_R@30", "novel_R@100")
    return dict.fromkeys(names, value)


def row(setting: str, candidates: str, method: str, value: float) -> dict[str, Any]:
    found = metrics(value)
    if candidates == "novel":
        found = {name: found[name] for name in ("P@1", "P@5", "R@30")}
    return {"setting": setting, "candidates": candidates, "method": method, "metrics": found}


ONCE = [
    row("one-shot", "all", "irene+instance", 4.0),
    row("zero-shot", "all", "irene+memory", 3.0),
    row("zero-shot", "novel", "my own", 2.0),
    row("zero-shot", "novel", "irene", 1.0),
]
TWICE = [
    row("zero-shot", "novel", "text", 1.0),
    row("zero-shot", "all", "text+memory", 5.0),
    row("zero-shot", "all", "reranked", 6.0),
    row("one-shot", "all", "text+instance", 7.0),
    row("one-shot", "all", "reranked", 8.0),
]


def section(folder: Path, **rows: list[dict[str, Any]]) -> list[str]:
    (folder / FOLDER).mkdir()
    for name, of in rows.items():
        document = orjson.dumps({"split": SPLIT, "rows": of})
        (folder / FOLDER / f"{name}.json").write_bytes(document)
    return "\n".join(novel_section(folder)).splitlines()


def cells(lines: list[str]) -> list[list[str]]:
    tables = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in table] for table in tables]


def test_methods_in_the_order_of_the_settings(tmp_path: Path) -> None:
    lines = section(tmp_path, colours=ONCE)
    assert "(10%)" in " ".join(lines)
    assert "colours: 100 novel labels of 1,000." in lines
    assert cells(lines)[2:] == [
        ["zero-shot", "novel", "**IRENE, C(u)**", "1.00", "1.00", "1.00"],
        ["zero-shot", "novel", "my own", "2.00", "2.00", "2.00"],
        ["zero-shot", "all", "IRENE, in the memory: what is served", "3.00", "3.00", "3.00"],
        ["one-shot", "all", "IRENE and instance row: what is served", "4.00", "4.00", "4.00"],
    ]


def test_a_second_ranking_has_a_table_of_its_own(tmp_path: Path) -> None:
    lines = section(tmp_path, colours=ONCE, trees=TWICE)
    start = lines.index("### A second ranking of novel keywords")
    assert not any("trees" in line for line in lines[:start])
    assert cells(lines[start:])[2:] == [
        ["trees", "zero-shot", "the memory", *["5.00"] * 6],
        ["trees", "zero-shot", "trees as well", *["6.00"] * 6],
        ["trees", "one-shot", "the memory", *["7.00"] * 6],
        ["trees", "one-shot", "trees as well", *["8.00"] * 6],
    ]


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert list(novel_section(tmp_path)) == []


@pytest.mark.parametrize("content", ["{", "[]", '{"split": {}}'])
def test_damaged_files_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "moby.json").write_text(content)
    with pytest.raises(InvalidData, match=r"moby\.json"):
        list(novel_section(tmp_path))
