"""UniDEC's ablations: the row in which a run is shown, and the bytes of its keys.

The committed page of tables shows the whole section.
"""

from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidInput
from training.evaluation.results import write
from training.lab.report.quality.unidec_tables import bytes_of_key, differences, unidec_section
from training.lab.report.runs import Run


@pytest.fixture
def unidec(run: Any, result: Any) -> Any:
    """`unidec(name, P@1 of labels alone, {"heads": {"encoder": 64}}, head_share=1.0)`: a run."""

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


def test_without_the_run_that_others_differ_from_nothing_is_written(
    unidec: Any, tmp_path: Path
) -> None:
    run = unidec("pal", 50.0)
    write(run.results, tmp_path / "unidec" / "colours" / run.name)
    with pytest.raises(InvalidInput, match="has no run named unidec"):
        list(unidec_section(tmp_path))
