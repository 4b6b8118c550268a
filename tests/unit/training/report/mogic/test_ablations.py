"""What stands in the tables, from runs made by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from training.evaluation.results import write
from training.evaluation.seeds import folder_of_seed
from training.report.mogic import ablations
from training.report.mogic.figures import gain, gains
from training.report.runs import Run
from training.report.significance import p_value, paired_p

Make = Callable[..., Run]
RowsOf = Callable[[list[Run]], list[list[str]]]


def test_a_gain_has_the_paired_tests_p(runs: list[Run]) -> None:
    _, alone, guided, *_ = runs
    p = p_value(paired_p(guided.rows[:, 0], alone.rows[:, 0]))
    assert gain(guided, alone) == f"+2.00 (p {p})"
    assert gains(guided, alone) == [
        f"+2.00 (p {p})",
        "+0.00 (p none)",
        "+0.00",
        "+0.00",
        "+0.00",
        "+2.00",
    ]


def test_each_oracle_says_what_it_reads(runs: list[Run]) -> None:
    rows = ablations.oracle_rows(runs)
    assert [row[:4] for row in rows] == [
        ["oracle", "rae", "queries and labels", "60.00"],
        ["rae", "rae", "none", "51.00"],
    ]


def test_table_13_pairs_each_disciple_with_itself_unguided(runs: list[Run]) -> None:
    rows = ablations.guided_rows(runs)
    assert [row[:3] for row in rows[:2]] == [
        ["MOGIC (ngame)", "guided", "52.00"],
        ["ngame", "ngame", "50.00"],
    ]
    assert rows[2][0] == "gain" and rows[2][2].startswith("+2.00")
    assert len(rows) == 3, "an oracle without metadata is Table 10's, OAK was not run alone"


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


def test_table_5_leaves_out_one_loss_after_the_other(runs: list[Run]) -> None:
    rows = ablations.loss_rows(runs)
    assert [(row[1], row[2]) for row in rows] == [
        ("Disciple + Alignment + Matching", "guided"),
        ("Disciple + Alignment", "aligned"),
        ("Disciple + Matching", "matched"),
        ("Disciple", "ngame"),
        ("Alignment + Matching", "guidance-alone"),
    ]
    assert rows[0][-1] == "" and rows[3][-1].startswith("-2.00")


def test_weights_are_listed_where_others_were_tried(runs: list[Run]) -> None:
    rows = ablations.weight_rows(runs)
    assert [row[1:4] for row in rows] == [
        ["", "", "ngame"],
        ["0", "0.1", "matched"],
        ["0.1", "0", "aligned"],
        ["0.1", "0.1", "guided"],
        ["2", "0.1", "strong"],
    ]
    assert ablations.weight_rows([run for run in runs if run.name != "strong"]) == []


def test_table_10_compares_with_the_whole(runs: list[Run]) -> None:
    rows = ablations.component_rows(runs)
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("ngame", "1", "guided"),
        ("ngame", "2", "guided-without-metadata"),
        ("oak", "1", "oak-guided"),
        ("oak", "3", "oak-linked"),
    ]
    assert [row[-1] == "" for row in rows] == [True, False, True, False]


def test_table_14_has_the_oracles_own_directions_first(runs: list[Run]) -> None:
    rows = ablations.projection_rows(runs)
    assert [row[2:4] for row in rows] == [["main directions", "guided"], ["learned", "projected"]]


TABLES = (
    ablations.guided_rows,
    ablations.loss_rows,
    ablations.weight_rows,
    ablations.component_rows,
    ablations.projection_rows,
)


@pytest.mark.parametrize("rows_of", TABLES)
def test_without_guided_runs_there_are_no_rows(rows_of: RowsOf, make: Make) -> None:
    assert rows_of([make("oracle", append="both"), make("ngame")]) == []


@pytest.mark.parametrize("rows_of", TABLES)
def test_names_say_nothing(rows_of: RowsOf, runs: list[Run]) -> None:
    names = {run.name: f"run-{place}" for place, run in enumerate(runs)}

    def renamed(run: Run) -> Run:
        settings, guidance = run.results.settings, dict(run.results.settings["guidance"])
        if guidance["oracle"] is not None:
            guidance["oracle"] = names[guidance["oracle"].split("/")[-1]]
        settings = {**settings, "guidance": guidance}
        results = replace(run.results, name=names[run.name], settings=settings)
        return Run(folder=run.folder.with_name(names[run.name]), results=results)

    before, after = rows_of(runs), rows_of([renamed(run) for run in runs])
    assert [row[-6:] for row in before] == [row[-6:] for row in after]
