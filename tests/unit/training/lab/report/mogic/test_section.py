"""MOGIC's tables from made-up runs, and the page's section; the committed page shows real runs.

Related runs are found by their settings, not by their names.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.errors import InvalidConfig, InvalidData, InvalidInput
from training.evaluation import results
from training.evaluation.seeds import folder_of_seed
from training.lab import robustness
from training.lab.report.mogic import section
from training.lab.report.mogic.relations import (
    families,
    is_of_mogic,
    oracles,
    reads_metadata_of,
    same_recipe,
)
from training.lab.report.mogic.section import gain, gains
from training.lab.report.plots import loss_curves
from training.lab.report.quality.page import quality_page
from training.lab.report.runs import Run
from training.lab.report.significance import p_value, paired_p
from training.lab.robustness import METRICS, Condition, Measured, Robustness, RunRobustness

Make = Callable[..., Run]
P1 = {"oracle": 60.0, "ngame": 50.0, "guided": 52.0}  # 51 for other runs


@pytest.fixture
def make(run: Any, result: Any) -> Make:
    """`make("guided", system="ngame", oracle="oracle", beta=0.0)` makes a run."""

    def one(
        name: str,
        *,
        system: str = "ngame",
        oracle: str | None = None,
        append: str = "none",
        own: dict[str, Any] | None = None,
        **guidance: Any,
    ) -> Run:
        p1 = P1.get(name, 51.0)
        settings = {
            "seed": 0,
            "encoder": {"name": "model", "query_tokens": 64},
            "system": {"name": system, **(own or {})},
            "metadata": {"append": append, "items": 8},
            "guidance": {"oracle": oracle and f"/far/away/{oracle}", **guidance},
        }
        ways = (
            result((p1, 30, 80), memorization=0.5, depth=200, chosen=True),
            result((p1 - 10, 20, 70), memorization=0.0, depth=200, method="labels only"),
        )
        rows = np.zeros((4, 3))
        rows[: int(p1) % 4, 0] = 1.0
        made: Run = run(name, system=system, settings=settings, ways=ways, rows=rows)
        return replace(made, folder=Path("measured") / "set" / name)

    return one


@pytest.fixture
def runs(make: Make) -> list[Run]:
    """An oracle, NGAME without it, and NGAME guided in each way that a table shows."""
    guided = {"oracle": "oracle"}
    return [
        make("oracle", system="rae", append="both"),
        make("ngame"),
        make("guided", **guided),
        make("aligned", beta=0.0, **guided),
        make("matched", alpha=0.0, **guided),
        make("guidance-alone", own_loss=0.0, **guided),
        make("projected", projection="learned", **guided),
        make("strong", alpha=2.0, **guided),
        make("rae", system="rae"),
        make("guided-without-metadata", oracle="rae"),
        make("oak-guided", system="oak", own={"attended": 3}, **guided),
        make("oak-linked", system="oak", own={"attended": 3, "metadata": "linked"}, **guided),
    ]


SETS = ("mogic-debian-seealso", "mogic-ablations-debian-seealso")


def under(metadata: Any, share: float, *p1: float) -> Measured:
    condition = Condition(metadata=metadata, share=share)
    return Measured(condition=condition, draws=tuple(dict.fromkeys(METRICS, one) for one in p1))


def noise() -> Robustness:
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
    return Robustness(dataset="colours", seeds=(1, 2, 3), precision="fp32", runs=(*readers, alone))


@pytest.fixture
def measured(runs: list[Run], run: Callable[..., Run], tmp_path: Path) -> Path:
    """Two folders of MOGIC's runs, and one of another system's run with an equal name."""
    for place, one in enumerate(runs):
        results.write(one.results, tmp_path / SETS[place > 6] / one.name)
    results.write(run("rae").results, tmp_path / "colours" / "rae")
    return tmp_path


def test_sets_of_mogic_make_one_section(measured: Path) -> None:
    page = quality_page(measured)
    plain, guided = page.split("## MOGIC on colours\n")
    assert "## colours\n" in plain and "| guided |" not in plain
    first, second = (guided.index(f"compare {name} ") for name in SETS)
    assert first < second, "what the other one extends comes first"
    for part in ("Table 4", "Tables 7 and 13", "Table 5", "Table 10", "Table 14", "All runs"):
        assert part in guided
    assert "| Disciple + Matching | matched |" in guided
    assert "from `robustness.json` in the folder of a set" in guided
    assert "/far/away" not in page, "no folder of whoever trained"


def test_what_no_run_measures_is_said(measured: Path) -> None:
    for name in ("projected", "strong"):
        for found in measured.glob(f"*/{name}"):
            shutil.rmtree(found)
    guided = quality_page(measured).split("## MOGIC on colours\n")[1]
    for heading in ("### The weights of the losses", "### A learned projection (Table 14)"):
        assert "No run here measures this." in guided.split(heading)[1].split("###")[0]


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


RowsOf = Callable[[list[Run]], Iterator[list[str]]]


def test_a_gain_has_the_paired_tests_p(runs: list[Run]) -> None:
    _, alone, guided, *_ = runs
    p = p_value(paired_p(guided.rows[:, 0], alone.rows[:, 0]))
    assert gain(guided, alone) == f"+2.00 (p {p})"
    assert gains(guided, alone) == [f"+2.00 (p {p})", "+0.00 (p none)", *["+0.00"] * 3, "+2.00"]


TABLES: dict[RowsOf, tuple[slice, list[list[str]]]] = {
    section.oracle_rows: (
        slice(4),
        [["oracle", "rae", "queries and labels", "60.00"], ["rae", "rae", "none", "51.00"]],
    ),
    # The oracle without metadata belongs to Table 10, and there is no run of OAK alone.
    section.guided_rows: (
        slice(2),
        [["MOGIC (ngame)", "guided"], ["ngame", "ngame"], ["gain", ""]],
    ),
    section.loss_rows: (
        slice(1, 3),
        [
            ["Disciple + Alignment + Matching", "guided"],
            ["Disciple + Alignment", "aligned"],
            ["Disciple + Matching", "matched"],
            ["Disciple", "ngame"],
            ["Alignment + Matching", "guidance-alone"],
        ],
    ),
    section.weight_rows: (
        slice(1, 4),
        [
            ["", "", "ngame"],
            ["0", "0.1", "matched"],
            ["0.1", "0", "aligned"],
            ["0.1", "0.1", "guided"],
            ["2", "0.1", "strong"],
        ],
    ),
    section.component_rows: (
        slice(0, 4, 3),
        [
            ["ngame", "guided"],
            ["ngame", "guided-without-metadata"],
            ["oak", "oak-guided"],
            ["oak", "oak-linked"],
        ],
    ),
    section.projection_rows: (
        slice(2, 4),
        [["main directions", "guided"], ["learned", "projected"]],
    ),
}


@pytest.mark.parametrize("rows_of", TABLES)
def test_a_table_has_the_runs_that_its_settings_tell(
    rows_of: RowsOf, runs: list[Run], make: Make
) -> None:
    columns, expected = TABLES[rows_of]
    assert [row[columns] for row in rows_of(runs)] == expected
    if rows_of is not section.oracle_rows:
        assert list(rows_of([make("oracle", append="both"), make("ngame")])) == []


def test_gains_over_seeds_are_differences_with_the_same_seed(
    runs: list[Run], tmp_path: Path
) -> None:
    for name, figures in {"ngame": (50.0, 51.0), "guided": (52.0, 55.0)}.items():
        one = next(run for run in runs if run.name == name)
        result, *others = one.results.results
        for seed, figure in enumerate(figures):
            ways = (replace(result, metrics=result.metrics | {"P@1": figure}), *others)
            folder = folder_of_seed(tmp_path / name, seed)
            results.write(replace(one.results, results=ways), folder)
    moved = [
        replace(run, folder=tmp_path / run.name) if run.name in ("ngame", "guided") else run
        for run in runs
    ]
    [row] = section.seeded_rows(moved)
    assert row[:4] == ["ngame", "guided", "2", "+3.00 ± 1.41"]
    assert list(section.seeded_rows(runs)) == []


def test_names_say_nothing(runs: list[Run]) -> None:
    names = {run.name: f"run-{place}" for place, run in enumerate(runs)}

    def renamed(run: Run) -> Run:
        settings: dict[str, Any] = run.results.settings
        guidance = dict(settings["guidance"])
        if guidance["oracle"] is not None:
            guidance["oracle"] = names[guidance["oracle"].split("/")[-1]]
        settings = {**settings, "guidance": guidance}
        results = replace(run.results, name=names[run.name], settings=settings)
        return Run(folder=run.folder.with_name(names[run.name]), results=results)

    for rows_of in TABLES:
        before, after = rows_of(runs), rows_of([renamed(run) for run in runs])
        assert [row[-6:] for row in before] == [row[-6:] for row in after]


def changed(run: Run, table: str, **settings: Any) -> Run:
    known = {**run.results.settings, table: {**run.results.settings[table], **settings}}
    return replace(run, results=replace(run.results, settings=known))


def test_a_family_are_runs_that_differ_in_guidance_alone(runs: list[Run]) -> None:
    ngame, oak, linked = families(runs)
    assert ngame.alone is not None and ngame.alone.name == "ngame"
    assert [one.run.name for one in ngame.disciples] == [
        *("guided", "aligned", "matched", "guidance-alone", "projected", "strong"),
        "guided-without-metadata",
    ]
    assert (oak.alone, linked.alone) == (None, None), "OAK was not run without guidance"
    assert [[one.run.name for one in group] for group in ngame.by_oracle()] == [
        ["guided", "aligned", "matched", "guidance-alone", "projected", "strong"],
        ["guided-without-metadata"],
    ]
    assert [one.as_in_the_paper for one in ngame.disciples] == [True] + 5 * [False] + [True]


def test_oracles_guide_or_read_metadata(runs: list[Run], make: Make, peer: Run) -> None:
    spare = make("spare", append="queries")
    assert [run.name for run in oracles([*runs, spare, peer])] == ["oracle", "rae", "spare"]
    assert reads_metadata_of(spare) == "queries"
    assert [is_of_mogic(run) for run in (spare, runs[1], runs[2], peer)] == [
        *(True, False, True, False)
    ]


def test_an_oracle_that_is_not_there_is_named(runs: list[Run]) -> None:
    with pytest.raises(InvalidInput, match="guided was guided by 'oracle', which is not among"):
        families(runs[1:])


def test_wrong_settings_name_their_file(make: Make) -> None:
    wrong = make("wrong", oracle="oracle", alpha=-1.0)
    with pytest.raises(InvalidConfig, match=r"wrong/results\.json: alpha"):
        families([make("oracle"), wrong])


def test_a_setting_that_one_version_lacked_does_not_part_runs(make: Make) -> None:
    run = make("ngame")
    assert same_recipe(run, changed(run, "encoder", pooling="mean"))
    assert not same_recipe(run, changed(run, "encoder", query_tokens=32))
    assert not same_recipe(run, changed(run, "system", loss="contrast"))
    assert same_recipe(run, changed(run, "system", metadata="linked"), but="metadata")
    scored = replace(run.results, settings={**run.results.settings, "items": "linked"})
    assert not same_recipe(run, replace(run, results=scored)), "scored with other items"
