"""`mix`: two runs' scores are mixed as it is best on the rows that both hold out."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.command_line import run
from tests.support.tiny.training import tiny_dataset, train_tiny
from training.__main__ import app
from training.combining.score_mix import weightings
from training.datasets import lf_xmc
from training.evaluation import results
from training.report.runs import read_runs


def mix(folder: Path, out: Path, *names: str, data: Path | None = None) -> int:
    places = [word for name in names for word in ("--run", str(folder / name))]
    data = data or folder / "data"
    return run(app, ["mix", *places, "--data", str(data), "--out", str(out)])


def test_a_mix_is_chosen_and_measured(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mix(two_runs, tmp_path / "mixed", "rae", "supcon") == 0

    said = capsys.readouterr().out
    assert "ms of processor time" in said and "chosen on held-out rows: rae" in said
    measured = results.read(tmp_path / "mixed")
    assert (measured.name, measured.system) == ("rae + supcon", "mix")
    assert measured.held_out_rows == 8 and measured.rows.shape == (16, 3)
    methods = [result.method for result in measured.results]
    assert methods == ["mix", "rae alone", "supcon alone", "equal weights"]
    assert [result.chosen for result in measured.results] == [True, False, False, False]
    chosen = measured.settings["mix"]
    assert sum(chosen["weights"]) == pytest.approx(1.0)
    assert chosen["held_out"] >= max(chosen["held_out_alone"]), "each run alone competes"
    assert chosen["encodings_per_query"] == np.count_nonzero(chosen["weights"])
    assert chosen["processor_ms_per_query"] > 0.0
    trained = [orjson.loads((two_runs / n / "run.json").read_bytes()) for n in ("rae", "supcon")]
    seconds = sum(facts["progress"]["seconds"] for facts in trained)
    assert measured.training_seconds == pytest.approx(seconds)


def test_a_run_by_itself_has_the_figures_of_its_score(two_runs: Path, tmp_path: Path) -> None:
    assert mix(two_runs, tmp_path / "mixed", "rae", "supcon") == 0
    shutil.copytree(two_runs / "rae", tmp_path / "rae")
    places = ["--run", str(tmp_path / "rae"), "--data", str(two_runs / "data")]
    assert run(app, ["score", *places, "--name", "rae"]) == 0

    alone = results.read(tmp_path / "mixed").results[1]
    scored = results.read(tmp_path / "rae").results[0]
    assert alone.metrics == pytest.approx(scored.metrics)
    together = read_runs([tmp_path / "mixed", tmp_path / "rae"])
    assert [one.name for one in together["colours"]] == ["rae + supcon", "rae"]
    folders = [str(tmp_path / name) for name in ("mixed", "rae")]
    assert run(app, ["report", "--runs", *folders, "--out", str(tmp_path / "report")]) == 0
    assert "rae + supcon" in (tmp_path / "report" / "report.html").read_text()


def test_weights_are_all_tenths_that_sum_to_one() -> None:
    assert weightings(2) == [(part / 10, (10 - part) / 10) for part in range(11)]
    three = weightings(3)
    assert len(three) == len(set(three)) == 66
    assert all(sum(weights) == pytest.approx(1.0) for weights in three)


def test_runs_that_hold_out_other_rows_are_refused(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ngrams.toml", "rae", "data"):
        copy = shutil.copytree if (two_runs / name).is_dir() else shutil.copy
        copy(two_runs / name, tmp_path / name)
    for name, setting in (("other", "seed=1"), ("none", "validation.rows=0")):
        assert train_tiny(tmp_path, name, setting, recipe="ngrams") == 0
    capsys.readouterr()
    for name, message in (("other", "hold out different rows"), ("none", "holds no rows out")):
        assert mix(tmp_path, tmp_path / "out", "rae", name) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("names", "out", "message"),
    [
        (["rae"], "out", "give 2 to 3 runs, not 1"),
        (["rae", "rae"], "out", "each run may be given once"),
        (["rae", "supcon", "a", "b"], "out", "give 2 to 3 runs, not 4"),
        (["rae", "missing"], "out", "is missing: the run has not finished"),
        (["rae", "supcon"], "rae", "--out must be another folder than those of the runs"),
    ],
)
def test_wrong_arguments_are_one_line(
    names: list[str], out: str, message: str, two_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mix(two_runs, two_runs / out, *names) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_other_data_of_the_same_name_are_refused(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, data = tiny_dataset(seed=1), tmp_path / "data"
    lf_xmc.write(dataset, data)
    assert mix(two_runs, tmp_path / "out", "rae", "supcon", data=data) == 2
    assert "was trained on other texts" in " ".join(capsys.readouterr().err.split())
    lf_xmc.write(replace(dataset, name="shapes"), tmp_path / "shapes")
    assert mix(two_runs, tmp_path / "out", "rae", "supcon", data=tmp_path / "shapes") == 2
    assert "was trained on 'colours'" in " ".join(capsys.readouterr().err.split())
