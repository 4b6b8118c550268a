"""UniDEC's ablations: where a run is placed, the bytes of its keys, and the section's tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.errors import InvalidInput
from training.evaluation.results import write
from training.report.quality.page import quality_page
from training.report.quality.unidec_tables import bytes_of_key, differences, unidec_section
from training.report.runs import Run

MEASURED = Path(__file__).parents[5] / "training" / "measured"


@pytest.fixture
def unidec(run: Any, result: Any) -> Any:
    """`unidec(name, P@1 of labels alone, {"heads": {"encoder": 64}}, head_share=1.0)`."""

    def make(name: str, figure: float, *changes: dict[str, Any], **facts: Any) -> Run:
        settings: dict[str, Any] = {
            "heads": {"encoder": 384, "classifier": 384, "shared": False},
            "batch": {"positives": 1, "hard_negatives": 1},
            "system": {"name": "unidec", "initial": "queries"},
            "optimizer": {"steps": 120},
            **facts,
        }
        for change in changes:
            for table, keys in change.items():
                settings[table] = {**settings[table], **keys}
        ways = (
            result((60, 30, 80), memorization=0.5, depth=200, chosen=True),
            result((figure, 20, 70), memorization=0.0, depth=200, method="labels only"),
        )
        for way in ways:
            way.metrics["PSP@3"] = 1.0
        return run(name, system="unidec", settings=settings, ways=ways)

    return make


def written(folder: Path, *runs: Run) -> Path:
    for run in runs:
        write(run.results, folder / "unidec" / "colours" / run.name)
    return folder


def test_a_run_differs_by_its_settings(unidec: Any) -> None:
    base = unidec("unidec", 50.0)
    other = unidec("pal", 49.0, {"system": {"reduction": "pal"}}, {"optimizer": {"steps": 7}})
    assert differences(base, base) == {}
    assert differences(other, base) == {"system.reduction": "pal"}
    assert differences(unidec("de", 47.0, head_share=1.0), base) == {"head_share": "1.0"}


def test_the_bytes_of_a_key(unidec: Any) -> None:
    narrow = {"heads": {"encoder": 64, "classifier": 32}}
    assert bytes_of_key(unidec("a", 1.0)) == 2 * 768
    assert bytes_of_key(unidec("b", 1.0, narrow)) == 2 * 96
    assert bytes_of_key(unidec("c", 1.0, narrow, head_share=1.0)) == 2 * 64
    assert bytes_of_key(unidec("d", 1.0, narrow, head_share=0.0)) == 2 * 32


def test_the_section_has_the_papers_tables(unidec: Any, tmp_path: Path) -> None:
    no_hard = {"batch": {"hard_negatives": 0}}
    narrow = {"heads": {"encoder": 64, "classifier": 64}}
    runs = (
        unidec("unidec", 50.0),
        unidec("unidec-de", 47.5, head_share=1.0),
        unidec("plain", 49.0, no_hard),
        unidec("plain-clf", 45.25, no_hard, head_share=0.0),
        unidec("pal", 48.0, {"system": {"reduction": "pal"}}),
        unidec("narrow", 44.0, narrow),
    )
    lines = "\n".join(unidec_section(written(tmp_path, *runs))).splitlines()

    rest, no = "20.00 | 1.00 | 1.00 | 1.00", "|  |  |  |  |  |  |"
    assert f"| UniDEC | 50.00 | 1.00 | {rest} | 49.00 | 1.00 | {rest} |" in lines
    assert f"| UniDEC-de, its first head | 47.50 | 1.00 | {rest} {no}" in lines
    assert any(line.startswith("| UniDEC-clf, its second head |  |") for line in lines)
    assert (
        f"| pal | system.reduction pal | 384 | 1 | 1 | 0.5 | 48.00 | 1.00 | {rest} | 60.00 | 1536 |"
        in lines
    )
    first = lines.index(next(line for line in lines if line.startswith("| run |"))) + 2
    assert lines[first].startswith("| unidec |  | 384 |"), "the base comes first"
    assert not any(line.startswith("| narrow |") for line in lines)
    at = lines.index(f"| 64 | 256 | 44.00 | 1.00 | {rest} | 60.00 |")
    assert lines[at - 1].startswith("| 384 | 1536 | 50.00 |")


def test_a_page_has_the_section_where_there_are_results(unidec: Any, tmp_path: Path) -> None:
    other = tmp_path / "debian-seealso" / "bm25"
    other.mkdir(parents=True)
    for name in ("results.json", "rows.npz"):
        (other / name).write_bytes((MEASURED / "debian-seealso/bm25" / name).read_bytes())
    assert "UniDEC's ablations" not in quality_page(tmp_path)
    page = quality_page(written(tmp_path, unidec("unidec", 50.0)))
    assert "## UniDEC's ablations" in page and "### colours" in page


def test_without_the_run_that_others_differ_from_nothing_is_written(
    unidec: Any, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="has no run named unidec"):
        list(unidec_section(written(tmp_path, unidec("pal", 50.0))))


def test_figures_are_of_the_same_rows(unidec: Any, tmp_path: Path) -> None:
    base, other = unidec("unidec", 50.0), unidec("pal", 50.0)
    other.results.__dict__["rows"] = np.zeros((3, 3))
    with pytest.raises(InvalidInput, match="differ in test rows"):
        list(unidec_section(written(tmp_path, base, other)))
