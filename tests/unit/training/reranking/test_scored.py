"""`score` measures a run with a second ranking as its bundle ranks."""

import shutil
from pathlib import Path

import pytest

from service.command_line import run
from training.__main__ import app
from training.checkpoints import second_ranking
from training.evaluation import results
from training.reranking.lessons import Lesson


def test_a_run_with_trees_is_measured_with_them(
    two_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lesson, "score_by", lambda lesson, sums: 200.0)
    shutil.copytree(two_runs / "rae", tmp_path / "rae")
    places = ["--run", str(tmp_path / "rae"), "--data", str(two_runs / "data")]
    assert run(app, ["rerank", *places, "--out", str(tmp_path / "again")]) == 0
    expected = results.read(tmp_path / "again")

    second_ranking.copy(tmp_path / "again", tmp_path / "rae" / "best")
    assert run(app, ["score", *places]) == 0
    scored = results.read(tmp_path / "rae")
    first, memory = scored.results[:2]
    assert (first.method, first.chosen, memory.chosen) == ("reranked", True, False)
    assert first.metrics == expected.results[0].metrics
    assert memory.metrics == expected.results[1].metrics
    assert scored.rows.tolist() == expected.rows.tolist()
    assert (first.memorization, first.depth) == (memory.memorization, memory.depth)

    # What is overruled is measured without it.
    assert run(app, ["score", *places, "--relevance", "binary"]) == 0
    assert all(result.method != "reranked" for result in results.read(tmp_path / "rae").results)
