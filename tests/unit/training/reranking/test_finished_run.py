"""A reranker learns only from finished runs on the same data with held-out rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.core.errors import InvalidData, InvalidInput
from tests.support.tiny.training import tiny_dataset
from training.datasets import lf_xmc
from training.reranking.finished_run import open_run


def test_a_run_is_opened_with_the_rows_that_it_holds_out(two_runs: Path) -> None:
    run = open_run(two_runs / "rae", lf_xmc.read(two_runs / "data"))
    assert (run.name, run.best) == ("rae", two_runs / "rae" / "best")
    assert len(run.slices.held_out) == 8 and run.seconds > 0.0


def test_a_run_that_has_not_finished_is_refused(two_runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="is missing: the run has not finished"):
        open_run(tmp_path, lf_xmc.read(two_runs / "data"))


def test_other_data_are_refused(two_runs: Path) -> None:
    dataset = tiny_dataset(seed=1)
    with pytest.raises(InvalidInput, match="was trained on other texts"):
        open_run(two_runs / "rae", dataset)
    with pytest.raises(InvalidInput, match="was trained on 'colours'"):
        open_run(two_runs / "rae", replace(dataset, name="shapes"))
