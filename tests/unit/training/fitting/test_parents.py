"""`fit --encoder RUN` measures nothing on rows that the run trained on, and loses no part of it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from export.__main__ import app as export
from service.command_line import run
from service.core.bundle.bundle import open_bundle
from tests.support.tiny.training import train_tiny, write_recipe
from tests.unit.training.fitting.conftest import fit
from training.checkpoints import reranker_folder
from training.checkpoints.choices import read_choices
from training.checkpoints.reranker_folder import weights_digest
from training.datasets import lf_xmc
from training.fitting import runs
from training.fitting.time_left import OutOfTime
from training.fitting.trial import Measured, Trial
from training.reranking.finished_run import open_run
from training.reranking.learning import Lesson

ROWS = 24  # held out by the parent, of 48; enough for two splits of nine
pytestmark = pytest.mark.usefixtures("short")


@pytest.fixture(scope="module")
def folder(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data, a recipe, and the run `parent`, which drew rows by their numbers."""
    folder = tmp_path_factory.mktemp("parent")
    write_recipe(folder, model=model)
    lf_xmc.write(lf_xmc.read(data), folder / "data")
    assert train(folder, "parent", f"validation.rows={ROWS}") == 0
    return folder


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The row numbers of each split on which a trial was measured."""
    seen: list[set[int]] = []
    joined = runs.joined

    def noted(splits: Sequence[Measured], **facts: Any) -> Trial:
        seen.extend(set(split.numbers.tolist()) for split in splits)
        return joined(splits, **facts)

    monkeypatch.setattr(runs, "joined", noted)
    return seen


def held_out(run: Path, data: Path) -> set[int]:
    return set(open_run(run, lf_xmc.read(data)).slices.held_out.tolist())


def train(folder: Path, name: str, *settings: str) -> int:
    """Train with the precision of `fit`, because a process keeps its first run's precision."""
    return train_tiny(folder, name, *settings, "optimizer.precision=auto", recipe="rae")


def test_no_split_is_measured_on_rows_that_the_parent_has_trained_on(
    folder: Path,
    tmp_path: Path,
    measured: list[set[int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("training.fitting.facts.MOST_SPLITS", 3)
    unseen = held_out(folder / "parent", folder / "data")
    assert len(unseen) == ROWS
    assert fit(folder / "data", tmp_path / "run", folder / "parent", "--seed", "5") == 0
    said = capsys.readouterr().out
    assert "has trained on 24 of these rows: only the other 24 can be held out" in said
    assert "9 rows are held out, 2 times over" in said
    assert len(measured) >= 2  # two splits for the parent and, if time allows, for a candidate
    assert all(len(split) == 9 and split <= unseen for split in measured)
    assert held_out(tmp_path / "run", folder / "data") <= unseen  # trees learn on the held-out rows

    facts = orjson.loads((tmp_path / "run/run.json").read_bytes())
    assert facts["fit"][0]["name"] == "parent"


def test_a_parent_that_has_seen_every_row_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, "everything", "validation.rows=0") == 0
    assert fit(folder / "data", tmp_path / "run", folder / "everything") == 2
    assert "has trained on all but 0 of the 48 labeled rows of colours" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert train(folder, "after all", f"encoder.name={folder / 'everything'}") == 2
    assert "has trained on every labeled row" in capsys.readouterr().err


def test_train_holds_out_what_its_first_encoder_has_not_seen(folder: Path) -> None:
    start = f"encoder.name={folder / 'parent'}"
    assert train(folder, "second", start, "seed=3") == 0
    rows = held_out(folder / "second", folder / "data")
    assert len(rows) == 8
    assert rows <= held_out(folder / "parent", folder / "data")
    same = ("seed=0", f"validation.rows={ROWS}")
    assert train(folder, "third", start, *same) == 0
    assert held_out(folder / "third", folder / "data") == held_out(
        folder / "parent", folder / "data"
    )


def test_a_checkpoint_without_a_record_is_measured_with_a_warning(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "parent/best", tmp_path / "old")
    (tmp_path / "old/trained_texts.npz").unlink()
    assert fit(folder / "data", tmp_path / "run", tmp_path / "old", minutes=0.1) == 0
    assert "old has no trained_texts.npz, as an earlier version wrote it" in capsys.readouterr().out


@pytest.fixture(scope="module")
def reranked(folder: Path) -> Path:
    """A run of `fit` that has a reranker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lesson, "score_by", lambda lesson, sums: 200.0)
        patch.setattr("training.fitting.fit.CANDIDATES", {})
        assert fit(folder / "data", folder / "reranked", folder / "parent") == 0
    assert reranker_folder.is_reranker(folder / "reranked/best")
    return folder / "reranked"


def late(*arguments: object, **options: object) -> None:
    """Replaces the learning of trees, and always runs out of time."""
    raise OutOfTime


def test_without_time_the_parents_reranker_stays_with_its_checkpoint(
    folder: Path,
    reranked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("training.fitting.reranker.learn", late)
    monkeypatch.setattr("training.fitting.fit.best_of", lambda trials: trials[0])
    out = tmp_path / "run"
    assert fit(folder / "data", out, reranked, minutes=0.1) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "; with the parent's reranker and settings" in last
    reranker_folder.read(out / "best", weights=weights_digest(out / "best"))
    assert read_choices(out / "best") == read_choices(reranked / "best")
    bundle = ["--encoder", str(out / "best"), "--data", str(folder / "data"), "--max-drop", "100"]
    bundle += ["--reranker", str(out / "best")]  # even if it harms known queries
    assert run(export, ["bundle", *bundle, "--out", str(tmp_path / "bundle")]) == 0
    assert open_bundle(tmp_path / "bundle").reranker is not None


@pytest.mark.parametrize(
    ("in_time", "why"),
    [(False, "none was learned: keymatch lab rerank"), (True, "trees gain nothing")],
)
def test_a_lost_reranker_is_reported_in_the_last_line(
    in_time: bool,
    why: str,
    folder: Path,
    reranked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    if not in_time:
        monkeypatch.setattr("training.fitting.reranker.learn", late)
        monkeypatch.setattr("training.fitting.fit.best_of", lambda trials: trials[-1])
    assert fit(folder / "data", out, reranked) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"; without the parent's reranker ({why}" in last
    assert not reranker_folder.is_reranker(out / "best")


def test_parts_that_a_trained_checkpoint_cannot_keep_are_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("system.name=one-versus-all", f"validation.rows={ROWS}")
    assert train(folder, "classifiers", *settings) == 0
    keys = folder / "classifiers/best/label_keys.npy"
    if not keys.is_file():  # if texts were the better keys
        np.save(keys, np.ones((16, 32), np.float16))
    assert fit(folder / "data", tmp_path / "run", folder / "classifiers", minutes=0.1) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "; without the parent's learned label keys" in last
