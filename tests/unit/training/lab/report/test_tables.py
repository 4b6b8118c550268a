"""The cells of tables of made-up results; means over seeds; t-tests, checked with scipy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from training.evaluation.results import write
from training.evaluation.seeds import folder_of_seed
from training.lab.report import tables
from training.lab.report.page import markdown, render, section_of
from training.lab.report.runs import Run, read_run
from training.lab.report.tables import (
    Table,
    comparisons,
    p_value,
    paired_p,
    seed_lines,
    seed_table,
    spread,
)


def cells(table: Table) -> dict[tuple[str, str], list[str]]:
    """Map (name, prediction) to the row's figures."""
    return {(name, way): list(figures) for name, way, *figures in table.rows}


def test_metrics_has_each_run_as_chosen_and_as_a_dual_encoder(run: Any, peer: Any) -> None:
    table = tables.metrics([run(), peer])
    found = cells(table)
    assert list(found) == [
        ("rae", "memory, λ 0.5, b 200 ●"),
        ("rae", "dual encoder, λ 0"),
        ("bm25", "BM25 ●"),
    ]
    columns = dict(zip(table.headings[2:], zip(*found.values(), strict=True), strict=True))
    assert columns["P@1"] == ("**50.00**", "40.00", "37.00")
    assert columns["R@100"] == ("**80.00**", "70.00", "57.00")
    assert columns["training time"] == ("90 s", "90 s", "")


def test_the_methods_of_runs_and_peers_have_names(run: Any, result: Any) -> None:
    chosen_0 = (
        result((40, 20, 70), memorization=0.0, depth=200, chosen=True),
        result((40, 20, 70), memorization=0.0, depth=200),
    )
    ways = (result((9, 9, 9), method="as it is"), result((8, 8, 8), method="reversed"))
    runs = [run(ways=chosen_0), run("ova", system="one-versus-all"), run("peer", ways=ways)]
    assert list(cells(tables.metrics(runs))) == [
        ("rae", "dual encoder, λ 0 ●"),
        ("ova", "memory, λ 0.5, b 200 ●"),
        ("ova", "classifiers alone, λ 0"),
        ("peer", "as it is ●"),
        ("peer", "reversed"),
    ]


def test_the_best_of_a_column_and_what_looks_equal_are_bold(run: Any, result: Any) -> None:
    def at(figure: float) -> Any:
        return (result((figure, 1, 1), method="x", chosen=True),)

    runs = [run("a", ways=at(50.001)), run("b", ways=at(50.004)), run("c", training_seconds=7200.0)]
    rows = tables.metrics(runs).rows
    assert [row[2].startswith("**") for row in rows] == [True, True, True, False]
    assert [row[-1] for row in rows] == ["**90 s**"] * 2 + ["2.0 h"] * 2


def test_a_sweep_has_a_line_for_each_metric_of_runs_that_tried_several(
    run: Any, peer: Any, result: Any
) -> None:
    ways = (
        result((1, 2, 3), memorization=0.5, depth=200, chosen=True),
        result((4, 5, 6), memorization=0.7, depth=200),
    )
    runs = (run(), run("other", ways=ways), peer)
    table = tables.sweep("λ", {one.name: one.by_memorization for one in runs})
    assert table.headings == ("run", "metric", "λ 0", "λ 0.5", "λ 0.7", "λ 1")
    assert cells(table) == {
        ("rae", "P@1"): ["40.00", "**50.00**", "", "45.00"],
        ("rae", "P@5"): ["20.00", "30.00", "", "**31.00**"],
        ("rae", "R@100"): ["70.00", "**80.00**", "", "60.00"],
        ("other", "P@1"): ["", "1.00", "**4.00**", ""],
        ("other", "P@5"): ["", "2.00", "**5.00**", ""],
        ("other", "R@100"): ["", "3.00", "**6.00**", ""],
    }


def test_segments_has_both_limits(run: Any, result: Any) -> None:
    ways = (
        result((1, 1, 1), memorization=0.5, depth=9, chosen=True, segments={"head": 7.0}),
        result((1, 1, 1), memorization=0.0, depth=9, segments={"head": 3.0}),
        result((1, 1, 1), memorization=1.0, depth=9, segments={"head": 8.0}),
    )
    table = tables.segments([run(ways=ways)])
    assert table.headings[2:] == ("head", "torso", "tail", "xtail", "unseen")
    assert cells(table) == {
        ("rae", "memory, λ 0.5, b 9 ●"): ["7.00", "", "", "", ""],
        ("rae", "dual encoder, λ 0"): ["3.00", "", "", "", ""],
        ("rae", "instances only, λ 1, b 9"): ["**8.00**", "", "", "", ""],
    }


@pytest.mark.parametrize("unknown", [None, float("nan")])  # JSON has null instead of nan
def test_segments_without_labels_are_empty(run: Any, result: Any, unknown: Any) -> None:
    ways = (result((1, 1, 1), method="x", segments={"head": unknown, "tail": 2.0}),)
    assert cells(tables.segments([run(ways=ways)])) == {("rae", "x ●"): ["", "", "2.00", "", ""]}
    ways = (result((1, 1, 1), method="x", segments={"head": unknown}),)
    assert tables.segments([run(ways=ways)]).rows == []


def test_predictions_marks_the_better_of_the_two(run: Any, peer: Any) -> None:
    table = tables.predictions([run(), peer])
    assert table.headings[2::3] == ("two searches: P@1", "one search: P@1")
    assert cells(table) == {
        ("rae", "λ 0.5"): ["46.00", "29.00", "**81.00**", "**50.00**", "**30.00**", "80.00"]
    }


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (119.0, "119 s"), (600.0, "10.0 min"), (9000.0, "2.5 h")]
)
def test_duration(seconds: float, shown: str) -> None:
    assert tables.duration(seconds) == shown


@pytest.fixture
def three(run: Any, result: Any, tmp_path: Path) -> Run:
    """A run with three seeds, whose P@1 is 50, 51 and 55 with the memory, 40 without."""
    for seed, figure in enumerate((50, 51, 55)):
        ways = (
            result((figure, 30, 80), memorization=0.5, depth=200, chosen=True),
            result((40, 20, 70), memorization=0.0, depth=200, method="labels only"),
        )
        write(run(ways=ways).results, folder_of_seed(tmp_path / "rae", seed))
    return read_run(tmp_path / "rae")


def test_a_spread_is_mean_and_sample_deviation() -> None:
    assert spread([1.0, 2.0, 3.0]) == "2.00 ± 1.00"
    assert spread([1.0]) == ""


def test_a_run_with_several_seeds_has_a_row(three: Run, run: Any) -> None:
    assert seed_table([run("alone"), three]).rows == [
        ["rae", "3", "40.00 ± 0.00", "52.00 ± 2.65", "30.00 ± 0.00", "80.00 ± 0.00", "1.00 ± 0.00"]
    ]
    assert list(seed_lines([run("alone")])) == []
    assert "52.00 ± 2.65" in render([section_of([three])])
    assert "Several seeds" not in render([section_of([run()])])


def test_the_main_tables_as_markdown(three: Run, run: Any, peer: Any) -> None:
    lines = "\n".join(markdown("colours", [three, peer])).splitlines()
    assert lines[0] == "## colours"
    assert "4 test rows. Lambda" in lines[2] and "are chosen on 1,000" in lines[2]
    assert "| rae | rae | 40.00 | 0.5 | 200 |  | **50.00** |" in "\n".join(lines)
    assert [line for line in lines if line.startswith("| rae | 3 | 40.00 ± 0.00 |")]
    assert lines[-1].startswith("- Table 5: ")


@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0])
def test_as_scipy(shift: float) -> None:
    generator = np.random.default_rng(0)
    left, right = generator.random(200) + shift, generator.random(200)
    assert paired_p(left, right) == pytest.approx(ttest_rel(left, right).pvalue, rel=1e-9)


@pytest.mark.parametrize(
    ("left", "right"),
    [([0.2, 0.7], [0.2, 0.7]), ([1.0, 1.0], [0.0, 0.0]), ([1.0], [0.0]), ([], [])],
    ids=["identical", "a constant apart", "one row", "no row"],
)
def test_no_p_value_where_nothing_varies(left: list[float], right: list[float]) -> None:
    assert paired_p(np.array(left), np.array(right)) is None


@pytest.mark.parametrize(
    ("p", "shown"),
    [
        (None, "none"),
        (0.0, "≈ 0"),
        (0.514, "0.51"),
        (0.01, "0.01"),
        (0.0045, "0.0045"),
        (2.53e-42, "2.5e-42"),
    ],
)
def test_p_values(p: float | None, shown: str) -> None:
    assert p_value(p) == shown


def test_the_best_by_p1_against_each_other(run: Any, peer: Any) -> None:
    ahead = run("ahead", rows=np.random.default_rng(1).random((4, 3)))
    table = comparisons([peer, ahead])
    assert table.headings[:4] == ("ahead against", "prediction", "P@1: points", "P@1: p")
    [[other, way, *cells]] = table.rows
    assert (other, way) == ("bm25", "BM25")
    for column in range(3):
        left, right = ahead.rows[:, column], peer.rows[:, column]
        points, p = cells[2 * column : 2 * column + 2]
        assert points == f"{100 * (left - right).mean():+.2f}"
        assert p == p_value(ttest_rel(left, right).pvalue)
    assert comparisons([ahead]).rows == []
