"""Means and deviations over seeds, from made-up results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training.evaluation.results import write
from training.evaluation.seeds import folder_of_seed
from training.lab.report.page import render, section_of
from training.lab.report.runs import Run, read_run
from training.lab.report.seeds import seed_lines, seed_table, spread


@pytest.fixture
def three(run: Callable[..., Run], result: Callable[..., Any], tmp_path: Path) -> Run:
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
    assert spread([1.0, 2.0, 3.0], "+.2f") == "+2.00 ± 1.00"
    assert spread([1.0]) == ""


def test_a_run_with_several_seeds_has_a_row(three: Run, run: Callable[..., Run]) -> None:
    assert seed_table([run("alone"), three]).rows == [
        ["rae", "3", "40.00 ± 0.00", "52.00 ± 2.65", "30.00 ± 0.00", "80.00 ± 0.00", "1.00 ± 0.00"]
    ]
    assert list(seed_lines([run("alone")])) == []
    assert any(line.startswith("| rae | 3 |") for line in seed_lines([three]))
    assert "52.00 ± 2.65" in render([section_of([three])])
    assert "Several seeds" not in render([section_of([run()])])
