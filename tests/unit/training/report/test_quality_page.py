"""The committed page of tables is what the command writes from the committed results."""

import json
from pathlib import Path

import pytest

from service.core.errors import InvalidData
from training.report.quality_page import quality_page

MEASURED = Path(__file__).parents[4] / "training" / "measured"


def test_the_committed_page_is_generated_from_the_committed_results() -> None:
    assert (MEASURED / "README.md").read_text(encoding="utf-8") == quality_page(MEASURED)


def test_each_run_has_a_line_with_its_chosen_figures() -> None:
    page = quality_page(MEASURED)
    for path in MEASURED.glob("*/*/results.json"):
        document = json.loads(path.read_text())
        chosen = next(result for result in document["results"] if result["chosen"])
        line = next(
            line
            for line in page.split(f"## {document['dataset']}\n")[1].splitlines()
            if line.startswith(f"| {document['name']} |")
        )
        for metric in ("P@1", "P@5", "R@100", "PSP@5"):
            assert f"{chosen['metrics'][metric]:.2f}" in line


def test_novel_results_without_rows_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "debian-seealso" / "bm25"
    run.mkdir(parents=True)
    for name in ("results.json", "rows.npz"):
        (run / name).write_bytes((MEASURED / "debian-seealso/bm25" / name).read_bytes())
    (tmp_path / "novel").mkdir()
    (tmp_path / "novel" / "moby.json").write_text('{"split": {}}')
    with pytest.raises(InvalidData, match=r"moby\.json.*rows"):
        quality_page(tmp_path)
