"""`rerank` learns trees on held-out rows and compares them with the memory; `score` uses them."""

import shutil
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from service.core.errors import BundleAltered, BundleMissing, InvalidData, InvalidInput
from tests.support.commands import status_of
from tests.support.tiny.training import tiny_dataset, train_tiny
from training.__main__ import app
from training.checkpoints import reranker_folder
from training.checkpoints.reranker_folder import is_reranker, read
from training.datasets import lf_xmc
from training.evaluation import results
from training.reranking.finished_run import open_run
from training.reranking.learning import Lesson


def rerank(run_folder: Path, data: Path, out: Path, *more: object) -> int:
    places = ("--run", run_folder, "--data", data, "--out", out)
    return status_of(app, "rerank", *places, *more)


@pytest.fixture(scope="module")
def plain(two_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `rerank` for a memory that is perfect on these data, so no tree is better."""
    out = tmp_path_factory.mktemp("plain") / "out"
    assert rerank(two_runs / "rae", two_runs / "data", out) == 0
    return out


@pytest.fixture(scope="module")
def better(two_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `rerank` for a memory that trees improve."""
    out = tmp_path_factory.mktemp("better") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lesson, "score_by", lambda lesson, sums: 200.0)
        assert rerank(two_runs / "rae", two_runs / "data", out) == 0
    return out


def test_what_was_chosen_is_measured(plain: Path) -> None:
    measured = results.read(plain)
    assert (measured.name, measured.system) == ("rae, reranked", "rerank")
    assert measured.held_out_rows == 8 and measured.rows.shape == (16, 3)
    chosen = measured.settings["rerank"]
    assert chosen["held_out"][str(chosen["trees"])] == max(chosen["held_out"].values())
    assert chosen["trees"] == 0
    [memory] = measured.results
    assert memory.chosen and memory.method == "memory"
    assert not (plain / "trees.txt").exists()
    with pytest.raises(BundleMissing, match="the memory's own order is better"):
        read(plain)


def test_trees_that_are_better_are_written(better: Path) -> None:
    measured = results.read(better)
    assert [result.method for result in measured.results] == ["reranked", "memory"]
    assert measured.results[0].chosen and not measured.results[1].chosen
    chosen = measured.settings["rerank"]
    assert chosen["trees"] == 50 and set(chosen["gains"]) and chosen["cost_ms"]["trees"] > 0.0
    trees = lightgbm.Booster(model_file=better / "trees.txt")
    facts = read(better).facts
    assert facts.trees == trees.num_trees()
    assert facts.candidates == 100 and facts.slope == chosen["calibration"]["slope"]


def test_what_is_written_is_a_whole_and_a_later_call_replaces_it(
    two_runs: Path, better: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(better, tmp_path / "again")
    words = out / "reranker" / "words.npy"
    np.save(words, np.load(words) + np.uint64(1))
    with pytest.raises(BundleAltered, match=r"are not those of reranker\.json"):
        read(out)
    (out / "reranker" / "rarity.npy").unlink()
    with pytest.raises(BundleAltered, match=r"rarity\.npy is missing"):
        read(out)
    assert rerank(two_runs / "rae", two_runs / "data", out) == 0
    said = capsys.readouterr().out
    assert "on 8 held-out rows by number of trees" in said and "no trees are kept" in said
    assert not is_reranker(out) and not words.exists()


def test_a_run_with_trees_is_measured_with_them(
    two_runs: Path, better: Path, plain: Path, tmp_path: Path
) -> None:
    run, expected = shutil.copytree(two_runs / "rae", tmp_path / "rae"), results.read(better)
    places = ("--run", run, "--data", two_runs / "data")
    reranker_folder.copy(better, run / "best")
    assert status_of(app, "score", *places) == 0
    scored = results.read(run)
    first, memory = scored.results[:2]
    assert (first.method, first.chosen, memory.chosen) == ("reranked", True, False)
    assert first.metrics == expected.results[0].metrics
    assert memory.metrics == expected.results[1].metrics == results.read(plain).results[0].metrics
    assert scored.rows.tolist() == expected.rows.tolist()
    assert (first.memorization, first.depth) == (memory.memorization, memory.depth)

    # If the user sets another relevance, `score` leaves the reranker out.
    assert status_of(app, "score", *places, "--relevance", "binary") == 0
    assert all(result.method != "reranked" for result in results.read(run).results)


def test_other_runs_teach_as_well(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = (two_runs / "rae", two_runs / "data", tmp_path / "again")
    assert rerank(*places, "--also", two_runs / "supcon") == 0
    assert "on 16 held-out rows by number of trees" in capsys.readouterr().out
    learned_from = results.read(tmp_path / "again").settings["rerank"]["learned_from"]
    assert learned_from == [str(two_runs / name) for name in ("rae", "supcon")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--also", "{run}"), "each run may be given once"),
        (("--out", "{run}"), "--out must be another folder"),
        (("--candidates", "0"), "candidates must lie in 1..1000"),
        (("--candidates", "1001"), "candidates must lie in 1..1000"),
        (("--metadata",), "--metadata reads metadata items, and data set colours has none"),
    ],
)
def test_wrong_options_are_refused(
    options: tuple[str, ...],
    message: str,
    two_runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [option.format(run=two_runs / "rae") for option in options]
    out = () if "--out" in options else ("--out", tmp_path / "out")
    places = ("--run", two_runs / "rae", "--data", two_runs / "data", *out)
    assert status_of(app, "rerank", *places, *given) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_too_few_held_out_rows_are_refused(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(two_runs / "ngrams.toml", tmp_path)
    shutil.copytree(two_runs / "data", tmp_path / "data")
    for name, rows, message in (
        ("few", 3, "holds out 3 rows; trees need 5 at least"),
        ("none", 0, "holds no rows out"),
    ):
        settings = (f"validation.rows={rows}", "optimizer.steps=1")
        assert train_tiny(tmp_path, name, *settings, recipe="ngrams") == 0
        assert rerank(tmp_path / name, tmp_path / "data", tmp_path / "out") == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_finished_run_is_opened_with_its_own_data_only(two_runs: Path, tmp_path: Path) -> None:
    dataset = lf_xmc.read(two_runs / "data")
    run = open_run(two_runs / "rae", dataset)
    assert (run.name, run.best) == ("rae", two_runs / "rae" / "best")
    assert len(run.slices.held_out) == 8 and run.seconds > 0.0
    with pytest.raises(InvalidData, match="is missing: the run has not finished"):
        open_run(tmp_path, dataset)
    dataset = tiny_dataset(seed=1)
    with pytest.raises(InvalidInput, match="was trained on other texts"):
        open_run(two_runs / "rae", dataset)
    with pytest.raises(InvalidInput, match="was trained on 'colours'"):
        open_run(two_runs / "rae", replace(dataset, name="shapes"))
