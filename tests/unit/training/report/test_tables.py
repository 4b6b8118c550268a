"""What stands in the tables' cells, from results made by hand."""

from typing import Any

import pytest

from training.report import tables
from training.report.tables import Table


def texts(table: Table) -> dict[tuple[str, str], list[str]]:
    """Cells by name and way; the best in asterisks."""
    return {
        (row.name, row.way): [f"*{cell.text}*" if cell.best else cell.text for cell in row.cells]
        for row in table.rows
    }


def test_metrics_has_each_run_as_chosen_and_as_a_dual_encoder(run: Any, peer: Any) -> None:
    table = tables.metrics([run(), peer])
    assert table.headings[:2] == ("P@1", "P@3")
    assert table.headings[-1] == "training time"
    cells = texts(table)
    assert list(cells) == [
        ("rae", "memory, λ 0.5, b 200"),
        ("rae", "dual encoder, λ 0"),
        ("bm25", "BM25"),
    ]
    p1, r100 = table.headings.index("P@1"), table.headings.index("R@100")
    assert [row[p1] for row in cells.values()] == ["*50.00*", "40.00", "37.00"]
    assert [row[r100] for row in cells.values()] == ["*80.00*", "70.00", "57.00"]
    assert [row[-1] for row in cells.values()] == ["90 s", "90 s", ""]
    assert [row.chosen for row in table.rows] == [True, False, True]


def test_metrics_has_a_run_that_chose_lambda_0_once(run: Any, result: Any) -> None:
    ways = (
        result((40, 20, 70), memorization=0.0, depth=200, chosen=True),
        result((40, 20, 70), memorization=0.0, depth=200),
    )
    assert list(texts(tables.metrics([run(ways=ways)]))) == [("rae", "dual encoder, λ 0")]


def test_metrics_names_classifiers(run: Any) -> None:
    ways = [row.way for row in tables.metrics([run(system="one-versus-all")]).rows]
    assert ways == ["memory, λ 0.5, b 200", "classifiers alone, λ 0"]


def test_metrics_has_all_ways_of_a_peer(run: Any, result: Any) -> None:
    ways = (result((9, 9, 9), method="as it is"), result((8, 8, 8), method="reversed"))
    table = tables.metrics([run("peer", ways=ways)])
    assert [row.way for row in table.rows] == ["as it is", "reversed"]


def test_the_shortest_training_is_the_best(run: Any) -> None:
    table = tables.metrics([run("slow", training_seconds=7200.0), run("quick")])
    assert [texts(table)[key][-1] for key in texts(table)] == ["2.0 h"] * 2 + ["*90 s*"] * 2


def test_what_looks_equal_is_equally_good(run: Any, result: Any) -> None:
    def at(figure: float) -> Any:
        return (result((figure, 1, 1), method="x", chosen=True),)

    table = tables.metrics([run("a", ways=at(50.001)), run("b", ways=at(50.004)), run("c")])
    assert [row.cells[0].best for row in table.rows] == [True, True, True, False]


def test_memorizations_marks_the_best_of_each_row(run: Any, peer: Any) -> None:
    table = tables.memorizations([run(), peer])
    assert table.groups == (("λ 0", 2), ("λ 0.5", 2), ("λ 1", 2))
    assert table.headings == ("P@1", "P@5") * 3
    assert texts(table) == {
        ("rae", "b 200"): ["40.00", "20.00", "*50.00*", "30.00", "45.00", "*31.00*"]
    }
    assert [cell.chosen for cell in table.rows[0].cells] == [False, False, True, True, False, False]


def test_memorizations_of_runs_that_swept_other_values(run: Any, result: Any) -> None:
    ways = (
        result((1, 2, 3), memorization=0.5, depth=200, chosen=True),
        result((4, 5, 6), memorization=0.7, depth=200),
    )
    cells = texts(tables.memorizations([run(), run("other", ways=ways)]))
    assert cells["other", "b 200"] == ["", "", "1.00", "2.00", "*4.00*", "*5.00*", "", ""]


def test_segments_has_both_limits(run: Any, result: Any) -> None:
    ways = (
        result((1, 1, 1), memorization=0.5, depth=9, chosen=True, segments={"head": 7.0}),
        result((1, 1, 1), memorization=0.0, depth=9, segments={"head": 3.0}),
        result((1, 1, 1), memorization=1.0, depth=9, segments={"head": 8.0}),
    )
    table = tables.segments([run(ways=ways)])
    assert table.headings == ("head", "torso", "tail", "xtail", "unseen")
    assert texts(table) == {
        ("rae", "memory, λ 0.5, b 9"): ["7.00", "", "", "", ""],
        ("rae", "dual encoder, λ 0"): ["3.00", "", "", "", ""],
        ("rae", "instances only, λ 1, b 9"): ["*8.00*", "", "", "", ""],
    }


@pytest.mark.parametrize("unknown", [None, float("nan")])  # nan is null in JSON
def test_segments_without_labels_are_empty(run: Any, result: Any, unknown: Any) -> None:
    ways = (result((1, 1, 1), method="x", segments={"head": unknown, "tail": 2.0}),)
    assert texts(tables.segments([run(ways=ways)])) == {("rae", "x"): ["", "", "2.00", "", ""]}
    ways = (result((1, 1, 1), method="x", segments={"head": unknown}),)
    assert tables.segments([run(ways=ways)]).rows == ()


def test_predictions_marks_the_better_of_the_two(run: Any, peer: Any) -> None:
    table = tables.predictions([run(), peer])
    assert table.groups == (("separate (Eq. 11)", 3), ("joint (Eq. 7)", 3))
    assert texts(table) == {
        ("rae", "λ 0.5"): ["46.00", "29.00", "*81.00*", "*50.00*", "*30.00*", "80.00"]
    }


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (119.0, "119 s"), (600.0, "10.0 min"), (9000.0, "2.5 h")]
)
def test_duration(seconds: float, shown: str) -> None:
    assert tables.duration(seconds) == shown
