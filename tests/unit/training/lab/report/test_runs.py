"""Folders of runs are read and checked against each other; errors name the folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.errors import InvalidData, InvalidInput
from training.lab.report.runs import read_runs


def test_runs_by_data_set_in_their_order(run: Any, peer: Any, written: Any) -> None:
    folders = [
        written(run("b")),
        written(run("a", dataset="moby"), "moby-a"),
        written(peer),
    ]
    found = read_runs(folders)
    assert {name: [one.name for one in runs] for name, runs in found.items()} == {
        "colours": ["b", "bm25"],
        "moby": ["a"],
    }


def test_a_run_knows_its_sweeps(run: Any) -> None:
    one = run()
    assert one.chosen.chosen
    assert list(one.by_memorization) == [0.0, 0.5, 1.0]
    assert list(one.by_depth) == [50, 200]
    assert list(one.separate) == [0.5]
    assert one.others == []


def test_a_peer_has_none(peer: Any) -> None:
    assert (peer.by_memorization, peer.by_depth, peer.separate) == ({}, {}, {})


def test_no_folder() -> None:
    with pytest.raises(InvalidInput, match="at least one folder"):
        read_runs([])


def test_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"results\.json: cannot be read"):
        read_runs([tmp_path])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda run, _: _with(run(), ()), r"results\.json: results: holds no result"),
        (lambda run, bare: run(ways=(bare,)), "the method 'bare' has no R@100"),
        (lambda run, _: run(rows=np.zeros((4, 2))), r"rows.npz: holds \[4, 2\], not \[n, 3\]"),
    ],
    ids=["no result", "a metric is missing", "rows of another shape"],
)
def test_damaged_results_are_named(
    run: Any, result: Any, written: Any, wrong: Any, message: str
) -> None:
    bare = result((1, 1, 1), method="bare")
    del bare.metrics["R@100"]
    with pytest.raises(InvalidData, match=message):
        read_runs([written(wrong(run, bare))])


def _with(run: Any, results: tuple[Any, ...]) -> Any:
    object.__setattr__(run.results, "results", results)
    return run


def test_one_name_twice_on_a_data_set(run: Any, written: Any) -> None:
    first, second = written(run(), "first"), written(run(), "second")
    with pytest.raises(InvalidInput, match="are both named 'rae' on 'colours'") as caught:
        read_runs([first, second])
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


def test_rows_of_unequal_length(run: Any, peer: Any, written: Any) -> None:
    other = run(rows=np.zeros((5, 3)))
    with pytest.raises(InvalidInput, match="differ in test rows of 'colours': 5 and 4") as caught:
        read_runs([written(other, "long"), written(peer, "short")])
    assert "long and " in str(caught.value)
    assert "short differ" in str(caught.value)


def test_unequal_propensity_constants(run: Any, written: Any) -> None:
    other = run("other", propensity={"a": 0.5, "b": 0.4})
    with pytest.raises(InvalidInput, match="differ in propensity constants"):
        read_runs([written(run()), written(other)])
