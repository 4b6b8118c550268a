"""`rerank`: trees learn on held-out rows, compete with the memory's order, and are measured."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import lightgbm
import numpy as np
import pytest

from service.command_line import run
from service.core.errors import BundleAltered, BundleMissing
from tests.support.tiny.training import train_tiny
from training.__main__ import app
from training.checkpoints.second_ranking import is_second_ranking, read
from training.evaluation import results
from training.reranking.lessons import Lesson
from training.reranking.pairs import Pairs
from training.reranking.trees import learn_trees


def rerank(run_folder: Path, data: Path, out: Path) -> int:
    places = ["--run", str(run_folder), "--data", str(data), "--out", str(out)]
    return run(app, ["rerank", *places])


def test_what_was_chosen_is_measured(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerank(two_runs / "rae", two_runs / "data", tmp_path / "again") == 0

    said = capsys.readouterr().out
    assert "on 8 held-out rows by number of trees" in said
    measured = results.read(tmp_path / "again")
    assert (measured.name, measured.system) == ("rae, reranked", "rerank")
    assert measured.held_out_rows == 8 and measured.rows.shape == (16, 3)
    chosen = measured.settings["rerank"]
    assert chosen["held_out"][str(chosen["trees"])] == max(chosen["held_out"].values())
    # The memory is perfect on these data, so no tree is better.
    assert chosen["trees"] == 0 and "no trees are kept" in said
    [memory] = measured.results
    assert memory.chosen and memory.method == "memory"
    assert not (tmp_path / "again" / "trees.txt").exists()
    with pytest.raises(BundleMissing, match="the memory's own order is better"):
        read(tmp_path / "again")


def test_trees_that_are_better_are_written(
    two_runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Lesson, "score_by", lambda lesson, sums: 200.0)
    assert rerank(two_runs / "rae", two_runs / "data", tmp_path / "again") == 0
    assert "ms of processor time" in capsys.readouterr().out
    measured = results.read(tmp_path / "again")
    assert [result.method for result in measured.results] == ["reranked", "memory"]
    assert measured.results[0].chosen and not measured.results[1].chosen
    chosen = measured.settings["rerank"]
    assert chosen["trees"] == 50 and set(chosen["gains"]) and chosen["cost_ms"]["trees"] > 0.0
    trees = lightgbm.Booster(model_file=tmp_path / "again" / "trees.txt")
    facts = read(tmp_path / "again").facts
    assert facts.trees == trees.num_trees()
    assert facts.candidates == 100 and facts.slope == chosen["calibration"]["slope"]

    # What is written is a whole, and a later call replaces it.
    (tmp_path / "again" / "reranker" / "rarity.npy").unlink()
    with pytest.raises(BundleAltered, match=r"rarity\.npy is missing"):
        read(tmp_path / "again")
    assert rerank(two_runs / "rae", two_runs / "data", tmp_path / "again") == 0
    words = tmp_path / "again" / "reranker" / "words.npy"
    np.save(words, np.load(words) + np.uint64(1))
    with pytest.raises(BundleAltered, match=r"are not those of reranker\.json"):
        read(tmp_path / "again")
    monkeypatch.undo()
    assert rerank(two_runs / "rae", two_runs / "data", tmp_path / "again") == 0
    assert not is_second_ranking(tmp_path / "again") and not words.exists()


def test_candidates_in_range(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--run", str(two_runs / "rae"), "--data", str(two_runs / "data")]
    for candidates in ("0", "1001"):
        out = ["--out", str(tmp_path / "again"), "--candidates", candidates]
        assert run(app, ["rerank", *places, *out]) == 2
        assert "candidates must lie in 1..1000" in capsys.readouterr().err


def test_the_memorys_order_is_that_of_score(two_runs: Path, tmp_path: Path) -> None:
    assert rerank(two_runs / "rae", two_runs / "data", tmp_path / "again") == 0
    shutil.copytree(two_runs / "rae", tmp_path / "rae")
    places = ["--run", str(tmp_path / "rae"), "--data", str(two_runs / "data")]
    assert run(app, ["score", *places, "--name", "rae"]) == 0
    again = results.read(tmp_path / "again").results
    [memory] = [result for result in again if result.method == "memory"]
    swept = results.read(tmp_path / "rae").results
    assert memory.metrics == pytest.approx(swept[0].metrics)


def test_other_runs_teach_as_well(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--run", str(two_runs / "rae"), "--data", str(two_runs / "data")]
    also = ["--also", str(two_runs / "supcon"), "--out", str(tmp_path / "again")]
    assert run(app, ["rerank", *places, *also]) == 0
    assert "on 16 held-out rows by number of trees" in capsys.readouterr().out
    learned_from = results.read(tmp_path / "again").settings["rerank"]["learned_from"]
    assert learned_from == [str(two_runs / name) for name in ("rae", "supcon")]

    twice = ["--also", str(two_runs / "rae"), "--out", str(tmp_path / "twice")]
    assert run(app, ["rerank", *places, *twice]) == 2
    assert "each run may be given once" in capsys.readouterr().err


def test_a_row_is_ranked_by_trees_that_learned_without_it() -> None:
    rows = np.array([4, 1])
    candidates = Pairs(queries=np.array([0, 0, 1]), labels=np.arange(3), votes=np.ones(3), count=2)
    lesson = Lesson(
        rows=rows,
        described=SimpleNamespace(candidates=candidates),  # type: ignore[arg-type]
        held_out=SimpleNamespace(),  # type: ignore[arg-type]
        positive=np.zeros(3, bool),
        counted=np.ones(3, bool),
    )
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
