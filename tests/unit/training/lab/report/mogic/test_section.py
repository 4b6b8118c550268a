"""The page's section on MOGIC: commands, tables, and what was not measured."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidData
from training.evaluation import results
from training.lab import robustness
from training.lab.report.plots import loss_curves
from training.lab.report.quality.page import quality_page
from training.lab.report.runs import Run
from training.lab.robustness import (
    METRICS,
    Condition,
    Measured,
    Robustness,
    RunRobustness,
)

MEASURED = Path(__file__).parents[6] / "training" / "lab" / "measured"
SETS = ("mogic-debian-seealso", "mogic-ablations-debian-seealso")


def under(metadata: Any, share: float, *p1: float) -> Measured:
    condition = Condition(metadata=metadata, share=share)
    return Measured(condition=condition, draws=tuple(dict.fromkeys(METRICS, one) for one in p1))


def noise(dataset: str = "colours") -> Robustness:
    """Noise costs the oracle more than the guided OAK; the other disciple reads no metadata."""

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
    """Two folders of MOGIC's runs, and one of another system's run with an equal name."""
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


def test_a_damaged_file_is_named(measured: Path) -> None:
    (measured / SETS[0] / robustness.FILE).write_text('[{"run": "oracle"}]')
    with pytest.raises(InvalidData, match=r"robustness\.json: format"):
        quality_page(measured)


def test_a_picture_has_a_band_for_draws_and_a_level_line_without_metadata() -> None:
    drawn = [curve for place, run in enumerate(noise().runs) for curve in loss_curves(run, place)]
    curves = {curve.name: curve for curve in drawn}
    assert list(curves) == [
        *(f"{run}: {kind}" for run in ("oracle", "oak-guided")
          for kind in ("links replaced", "smaller bank", "smaller bank, predicted")),
        "guided: no metadata",
    ]  # fmt: skip
    replaced = curves["oracle: links replaced"]
    assert replaced.points == [(0.0, 60.0), (0.4, 40.0)] and replaced.spread == [0.0, 1.0]
    predicted = curves["oracle: smaller bank, predicted"]
    assert predicted.points[0] == (0.0, 40.0), "it begins with the whole bank's predictions"
    assert predicted.points[1] == (pytest.approx(0.2), 38.0)
    assert curves["guided: no metadata"].points == [(0.0, 52.0), (0.8, 52.0)]
