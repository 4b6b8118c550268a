"""`rerank`: trees learn on held-out rows, compete with the memory's order, and are measured."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import lightgbm
import numpy as np
import pytest

from service.command_line import run
from tests.support.tiny.training import train_tiny
from training.__main__ import app
from training.evaluation import results
from training.reranking.candidates import Candidates
from training.reranking.lessons import Lesson
from training.reranking.trees import learn_trees


def rerank(run_folder: Path, data: Path, out: Path) -> int:
    places = ["--run", str(run_folder), "--data", str(data), "--out", str(out)]
    return run(app, ["rerank", *places])


def test_what_was_chosen_is_measured(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerank(two_runs / "rae", two_runs / "data", tmp_path / "again") == 0

    said = capsys.readouterr().out
    assert "chosen on 8 held-out rows" in said and "ms of processor time" in said
    measured = results.read(tmp_path / "again")
    assert (measured.name, measured.system) == ("rae, reranked", "rerank")
    assert measured.held_out_rows == 8 and measured.rows.shape == (16, 3)
    chosen = measured.settings["rerank"]
    assert chosen["held_out"][str(chosen["trees"])] == max(chosen["held_out"].values())
    first, other = measured.results
    assert first.chosen and {first.method, other.method} == {"reranked", "memory"}
    assert (first.method == "memory") is (chosen["trees"] == 0)
    written = tmp_path / "again" / "trees.txt"
    assert written.exists() is (chosen["trees"] > 0)
    if chosen["trees"]:
        assert lightgbm.Booster(model_file=written).num_trees() == chosen["trees"]


def test_the_memorys_order_is_that_of_score(two_runs: Path, tmp_path: Path) -> None:
    assert rerank(two_runs / "rae", two_runs / "data", tmp_path / "again") == 0
    shutil.copytree(two_runs / "rae", tmp_path / "rae")
    places = ["--run", str(tmp_path / "rae"), "--data", str(two_runs / "data")]
    assert run(app, ["score", *places, "--name", "rae"]) == 0
    again = results.read(tmp_path / "again").results
    [memory] = [result for result in again if result.method == "memory"]
    swept = results.read(tmp_path / "rae").results
    deepest = max(r.depth or 0 for r in swept)
    expected = [
        result
        for result in swept
        if result.depth == deepest and result.memorization == swept[0].memorization
    ]
    assert memory.metrics == pytest.approx(expected[-1].metrics)


def test_other_runs_teach_as_well(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--run", str(two_runs / "rae"), "--data", str(two_runs / "data")]
    also = ["--also", str(two_runs / "supcon"), "--out", str(tmp_path / "again")]
    assert run(app, ["rerank", *places, *also]) == 0
    assert "chosen on 16 held-out rows" in capsys.readouterr().out
    learned_from = results.read(tmp_path / "again").settings["rerank"]["learned_from"]
    assert learned_from == [str(two_runs / name) for name in ("rae", "supcon")]

    twice = ["--also", str(two_runs / "rae"), "--out", str(tmp_path / "twice")]
    assert run(app, ["rerank", *places, *twice]) == 2
    assert "each run may be given once" in capsys.readouterr().err


def test_a_row_is_ranked_by_trees_that_learned_without_it() -> None:
    rows = np.array([4, 1])
    candidates = Candidates(
        queries=np.array([0, 0, 1]), labels=np.arange(3), scores=np.ones(3), count=2
    )
    described = SimpleNamespace(candidates=candidates)
    lesson = Lesson(rows=rows, described=described, held_out=SimpleNamespace())  # type: ignore[arg-type]
    fold_of = np.array([0, 1, 2, 3, 4])
    assert lesson.within(fold_of, 4).tolist() == [True, True, False]
    assert lesson.within(fold_of, 1).tolist() == [False, False, True]


def test_too_few_held_out_rows_are_refused(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ngrams.toml", "data"):
        copy = shutil.copytree if (two_runs / name).is_dir() else shutil.copy
        copy(two_runs / name, tmp_path / name)
    for name, rows, message in (
        ("few", 3, "holds out 3 rows; trees need 5 at least"),
        ("none", 0, "holds no rows out"),
    ):
        assert train_tiny(tmp_path, name, f"validation.rows={rows}", recipe="ngrams") == 0
        assert rerank(tmp_path / name, tmp_path / "data", tmp_path / "out") == 2
        assert message in " ".join(capsys.readouterr().err.split())
    places = ["--run", str(tmp_path / "few"), "--data", str(tmp_path / "data")]
    assert run(app, ["rerank", *places, "--out", str(tmp_path / "few")]) == 2
    assert "--out must be another folder" in capsys.readouterr().err


def test_metadata_that_the_data_lack_are_refused(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--run", str(two_runs / "rae"), "--data", str(two_runs / "data")]
    assert run(app, ["rerank", *places, "--out", str(tmp_path / "again"), "--metadata"]) == 2
    assert "--metadata reads metadata items, and data set colours has none" in " ".join(
        capsys.readouterr().err.split()
    )


def test_trees_learn_what_tells_right_from_wrong() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((4_000, 2), dtype=np.float32)
    positive = features[:, 1] > 0.9
    learned = learn_trees(
        features, positive, [20] * 200, names=["noise, so to say", "signal"], trees=20, seed=0
    )
    scores = learned.scores(features, trees=20)
    assert scores[positive].min() > np.median(scores[~positive])
    assert next(iter(learned.gains())) == "signal"
    assert learned.booster.num_trees() == 20
