"""The tables of made-up runs; the committed page shows the tables of real runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from training.evaluation.results import write
from training.evaluation.seeds import folder_of_seed
from training.lab.report.mogic import ablations
from training.lab.report.mogic.ablations import gain, gains
from training.lab.report.runs import Run
from training.lab.report.significance import p_value, paired_p

Make = Callable[..., Run]
RowsOf = Callable[[list[Run]], list[list[str]]]


def test_a_gain_has_the_paired_tests_p(runs: list[Run]) -> None:
    _, alone, guided, *_ = runs
    p = p_value(paired_p(guided.rows[:, 0], alone.rows[:, 0]))
    assert gain(guided, alone) == f"+2.00 (p {p})"
    assert gains(guided, alone) == [f"+2.00 (p {p})", "+0.00 (p none)", *["+0.00"] * 3, "+2.00"]


TABLES: dict[RowsOf, tuple[slice, list[list[str]]]] = {
    ablations.oracle_rows: (
        slice(4),
        [["oracle", "rae", "queries and labels", "60.00"], ["rae", "rae", "none", "51.00"]],
    ),
    # The oracle without metadata belongs to Table 10, and there is no run of OAK alone.
    ablations.guided_rows: (
        slice(2),
        [["MOGIC (ngame)", "guided"], ["ngame", "ngame"], ["gain", ""]],
    ),
    ablations.loss_rows: (
        slice(1, 3),
        [
            ["Disciple + Alignment + Matching", "guided"],
            ["Disciple + Alignment", "aligned"],
            ["Disciple + Matching", "matched"],
            ["Disciple", "ngame"],
            ["Alignment + Matching", "guidance-alone"],
        ],
    ),
    ablations.weight_rows: (
        slice(1, 4),
        [
            ["", "", "ngame"],
            ["0", "0.1", "matched"],
            ["0.1", "0", "aligned"],
            ["0.1", "0.1", "guided"],
            ["2", "0.1", "strong"],
        ],
    ),
    ablations.component_rows: (
        slice(0, 4, 3),
        [
            ["ngame", "guided"],
            ["ngame", "guided-without-metadata"],
            ["oak", "oak-guided"],
            ["oak", "oak-linked"],
        ],
    ),
    ablations.projection_rows: (
        slice(2, 4),
        [["main directions", "guided"], ["learned", "projected"]],
    ),
}


@pytest.mark.parametrize("rows_of", TABLES)
def test_a_table_has_the_runs_that_its_settings_tell(
    rows_of: RowsOf, runs: list[Run], make: Make
) -> None:
    columns, expected = TABLES[rows_of]
    rows = rows_of(runs)
    assert [row[columns] for row in rows] == expected
    if rows_of is not ablations.oracle_rows:
        assert rows_of([make("oracle", append="both"), make("ngame")]) == []


def test_rows_are_compared_with_the_first_of_their_table(runs: list[Run]) -> None:
    losses, components = ablations.loss_rows(runs), ablations.component_rows(runs)
    assert losses[0][-1] == "" and losses[3][-1].startswith("-2.00")
    assert [row[-1] == "" for row in components] == [True, False, True, False]
    assert ablations.guided_rows(runs)[2][2].startswith("+2.00")
    assert ablations.weight_rows([run for run in runs if run.name != "strong"]) == []


def test_gains_over_seeds_are_differences_with_the_same_seed(
    runs: list[Run], tmp_path: Path
) -> None:
    for name, figures in {"ngame": (50.0, 51.0), "guided": (52.0, 55.0)}.items():
        one = next(run for run in runs if run.name == name)
        result, *others = one.results.results
        for seed, figure in enumerate(figures):
            ways = (replace(result, metrics=result.metrics | {"P@1": figure}), *others)
            folder = folder_of_seed(tmp_path / name, seed)
            write(replace(one.results, results=ways), folder)
    moved = [
        replace(run, folder=tmp_path / run.name) if run.name in ("ngame", "guided") else run
        for run in runs
    ]
    [row] = ablations.seeded_rows(moved)
    assert row[:4] == ["ngame", "guided", "2", "+3.00 ± 1.41"]
    assert ablations.seeded_rows(runs) == []


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
