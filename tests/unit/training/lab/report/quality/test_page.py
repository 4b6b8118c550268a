"""The command writes exactly the committed page of tables from the committed results.

The page shows whole sections; made-up results test the order of rows, errors, and keys' bytes.
"""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.core.errors import InvalidData, InvalidInput
from training.evaluation.results import write
from training.lab.report.quality.novel_tables import FOLDER, novel_section
from training.lab.report.quality.page import quality_page
from training.lab.report.quality.unidec_tables import bytes_of_key, unidec_section

MEASURED = Path(__file__).parents[6] / "training" / "lab" / "measured"


def test_the_committed_page_is_generated_from_the_committed_results() -> None:
    assert (MEASURED / "README.md").read_text(encoding="utf-8") == quality_page(MEASURED)


def test_each_run_has_a_line_with_its_chosen_figures() -> None:
    page = (MEASURED / "README.md").read_text(encoding="utf-8")
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
    assert list(novel_section(tmp_path)) == []
    with pytest.raises(InvalidInput, match="holds no results"):
        quality_page(tmp_path)


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


@pytest.mark.parametrize("content", ["[]", '{"split": {}}'])
def test_damaged_files_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "moby.json").write_text(content)
    with pytest.raises(InvalidData, match=r"moby\.json"):
        list(novel_section(tmp_path))


@pytest.mark.parametrize(
    ("share", "dimensions"), [({}, 96), ({"head_share": 1.0}, 64), ({"head_share": 0.0}, 32)]
)
def test_a_key_has_the_bytes_of_the_heads_that_are_searched(
    run: Any, share: dict[str, float], dimensions: int
) -> None:
    heads = {"encoder": 64, "classifier": 32}
    assert bytes_of_key(run(settings={"heads": heads, **share})) == 2 * dimensions


def test_without_the_run_that_others_differ_from_nothing_is_written(
    run: Any, tmp_path: Path
) -> None:
    write(run("pal", system="unidec").results, tmp_path / "unidec" / "colours" / "pal")
    with pytest.raises(InvalidInput, match="has no run named unidec"):
        list(unidec_section(tmp_path))
