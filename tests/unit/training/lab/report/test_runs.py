"""Folders of runs are read, checked against each other, and shown by `keymatch lab report`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.errors import InvalidData, InvalidInput
from tests.support.commands import one_line, status_of
from training.__main__ import app
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


def test_runs_that_cannot_be_compared_are_named(run: Any, peer: Any, written: Any) -> None:
    first, second = written(run(), "first"), written(run(), "second")
    with pytest.raises(InvalidInput, match=f"{first} and {second} are both named 'rae' on 'col"):
        read_runs([first, second])
    rows = written(run("long", rows=np.zeros((5, 3))))
    with pytest.raises(
        InvalidInput, match=r"long and .* differ in test rows of 'colours': 5 and 4"
    ):
        read_runs([rows, written(peer)])
    propensity = written(run("other", propensity={"a": 0.5, "b": 0.4}))
    with pytest.raises(InvalidInput, match="differ in propensity constants"):
        read_runs([first, propensity])


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    return one_line(status_of(app, "report", *arguments), capsys.readouterr().err)


def test_the_command_writes_a_page_and_says_what_is_wrong_in_a_line(
    run: Any, peer: Any, written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "report", written(run())
    assert refused(capsys, "--out", out) == "--run: name at least one folder with results"
    said = refused(capsys, "--run", tmp_path, "--out", out)
    assert said.startswith(f"{tmp_path / 'results.json'}: cannot be read")
    assert "are both named 'rae'" in refused(capsys, "--run", folder, folder, "--out", out)
    assert not out.exists()
    assert status_of(app, "report", "--run", folder, written(peer), "--out", out) == 0
    assert {path.name for path in out.iterdir()} == {"report.html", "tables.md"}
    assert "| bm25 | BM25 |" in (out / "tables.md").read_text(encoding="utf-8")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "bm25" in page and str(tmp_path) not in page
    assert refused(capsys, "--run", folder, "--out", out).startswith(f"{out}: exists already")
