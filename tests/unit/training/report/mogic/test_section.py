"""The section as it stands in the page: commands, tables, and what was not measured."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidData
from training.evaluation import results, robustness
from training.evaluation.robustness import (
    METRICS,
    Condition,
    Measured,
    Robustness,
    RunRobustness,
)
from training.report.quality.page import quality_page
from training.report.robustness_panels import robustness_panels
from training.report.runs import Run

MEASURED = Path(__file__).parents[5] / "training" / "measured"
SETS = ("mogic-debian-seealso", "mogic-ablations-debian-seealso")


def under(metadata: Any, share: float, *p1: float) -> Measured:
    condition = Condition(metadata=metadata, share=share)
    return Measured(condition=condition, draws=tuple(dict.fromkeys(METRICS, one) for one in p1))


def noise(dataset: str = "colours") -> Robustness:
    """An oracle that loses more than a guided OAK, and a disciple that reads nothing."""

    def reader(run: str, reads: Any, guided_by: str | None, *, lost: float) -> RunRobustness:
        return RunRobustness(
            run=run,
            system="oak" if guided_by else "rae",
            reads=reads,
            guided_by=guided_by,
            measured=(
                under("true", 0.0, 60.0),
                under("predicted", 0.0, 60.0 - lost),
                under("replaced", 0.4, 59.0 - lost, 60.0 - lost, 61.0 - lost),
                under("in a bank of", 0.8, 60.0 - lost),
                under("predicted in a bank of", 0.8, 58.0 - lost),
            ),
        )

    alone = RunRobustness(
        run="guided", system="ngame", reads="nothing", guided_by="oracle",
        measured=(under("not read", 0.0, 52.0),),
    )  # fmt: skip
    readers = (
        reader("oracle", "texts", None, lost=20.0),
        reader("oak-guided", "items", "oracle", lost=2.0),
    )
    return Robustness(dataset=dataset, seeds=(1, 2, 3), precision="fp32", runs=(*readers, alone))


@pytest.fixture
def measured(runs: list[Run], run: Callable[..., Run], tmp_path: Path) -> Path:
    """Two sets of MOGIC's runs, and one of other systems on the same data with equal names."""
    for place, one in enumerate(runs):
        results.write(one.results, tmp_path / SETS[place > 6] / one.name)
    results.write(run("rae").results, tmp_path / "colours" / "rae")
    return tmp_path


def test_sets_of_mogic_make_one_section(measured: Path) -> None:
    page = quality_page(measured)
    plain, section = page.split("## MOGIC on colours\n")
    assert "## colours\n" in plain and "| guided |" not in plain
    first, second = (section.index(f"compare {name} ") for name in SETS)
    assert first < second, "what the other one extends comes first"
    for part in ("Table 4", "Tables 7 and 13", "Table 5", "Table 10", "Table 14", "All runs"):
        assert part in section
    assert "| Disciple + Matching | matched |" in section
    assert "from `robustness.json` in the folder of a set" in section
    assert "/far/away" not in page, "no folder of whoever trained"


def test_what_no_run_measures_is_said(measured: Path) -> None:
    for name in ("projected", "strong"):
        for found in measured.glob(f"*/{name}"):
            shutil.rmtree(found)
    section = quality_page(measured).split("## MOGIC on colours\n")[1]
    for heading in ("### The weights of the losses", "### A learned projection (Table 14)"):
        assert "No run here measures this." in section.split(heading)[1].split("###")[0]


def test_noise_is_shown_with_its_deviation_and_its_picture(measured: Path) -> None:
    robustness.write(noise(), measured / SETS[0])
    robustness.write(noise("other"), measured / SETS[1])
    (measured / SETS[0] / "robustness.png").write_bytes(b"")
    section = quality_page(measured).split("## MOGIC on colours\n")[1]
    figures = " | ".join(["40.00"] * len(METRICS))
    assert f"| oracle | oracle | predicted | {figures} | -20.00 |" in section
    assert "| MOGIC (oak) | oak-guided | 40% | 58.00 ± 1.00 |" in section
    assert "| oracle | oracle | 80%, predicted | 38.00 |" in section
    assert "| MOGIC (ngame) | guided | not read | 52.00 |" in section
    assert section.count("**Table 6.**") == 1, "that of another data set has no place here"
    assert f"]({SETS[0]}/robustness.png)" in section


def test_a_damaged_file_is_named(measured: Path) -> None:
    (measured / SETS[0] / robustness.FILE).write_text('[{"run": "oracle"}]')
    with pytest.raises(InvalidData, match=r"robustness\.json: format"):
        quality_page(measured)


def test_the_panel_has_a_band_for_draws_and_a_level_line_without_metadata() -> None:
    [panel] = robustness_panels([noise()])
    curves = {curve.name: curve for curve in panel.curves}
    assert list(curves) == [
        *(f"{run}: {kind}" for run in ("oracle", "oak-guided")
          for kind in ("links replaced", "smaller bank", "smaller bank, predicted")),
        "guided: no metadata",
    ]  # fmt: skip
    replaced = curves["oracle: links replaced"]
    assert replaced.points == ((0.0, 60.0), (0.4, 40.0)) and replaced.spread == (0.0, 1.0)
    predicted = curves["oracle: smaller bank, predicted"]
    assert predicted.points[0] == (0.0, 40.0), "it begins with the whole bank's predictions"
    assert predicted.points[1] == (pytest.approx(0.2), 38.0)
    assert curves["guided: no metadata"].points == ((0.0, 52.0), (0.8, 52.0))
    two = robustness_panels([noise(), replace(noise(), dataset="other")])
    assert [panel.name for panel in two] == ["1", "2"]
