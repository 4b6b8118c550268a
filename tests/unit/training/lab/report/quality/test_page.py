"""The command writes exactly the committed page of tables from the committed results."""

import json
from pathlib import Path

import pytest

from service.core.errors import InvalidInput
from training.lab.report.quality.page import quality_page

MEASURED = Path(__file__).parents[6] / "training" / "lab" / "measured"


def test_the_committed_page_is_generated_from_the_committed_results() -> None:
    assert (MEASURED / "README.md").read_text(encoding="utf-8") == quality_page(MEASURED)


def test_each_run_has_a_line_with_its_chosen_figures() -> None:
    page = quality_page(MEASURED)
    for path in MEASURED.glob("*/*/results.json"):
        document = json.loads(path.read_text())
        chosen = next(result for result in document["results"] if result["chosen"])
        headings = tuple(f"{of}{document['dataset']}\n" for of in ("", "MOGIC on "))
        lines = (
            line
            for section in page.split("\n## ")
            if section.startswith(headings)
            for line in section.splitlines()
            if line.startswith(f"| {document['name']} |")
        )
        shown = [f"{chosen['metrics'][name]:.2f}" for name in ("P@1", "P@5", "R@100", "PSP@5")]
        assert any(all(figure in line for figure in shown) for line in lines)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no results"):
        quality_page(tmp_path)
