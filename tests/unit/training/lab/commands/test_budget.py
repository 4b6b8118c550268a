"""`training budget` on a tiny encoder."""

import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest

from tests.support.commands import one_line, status_of
from training.__main__ import app
from training.checkpoints.choices import Choices, write_choices
from training.checkpoints.run_json import DATA_DIGEST
from training.datasets import lf_xmc
from training.evaluation.answers import digest_of
from training.lab.study import open_study
from training.scoring import open_scoring


@pytest.fixture
def trained(model: Path, data: Path, tmp_path: Path) -> Path:
    """A folder like that of `train`, with only the files that `budget` reads."""
    folder = tmp_path / "run"
    shutil.copytree(model, folder / "best")
    settings = {"validation": {"rows": 10}, "seed": 3}
    facts = {"dataset": "colours", "settings": settings, DATA_DIGEST: digest_of(lf_xmc.read(data))}
    (folder / "run.json").write_bytes(orjson.dumps(facts))
    choices = Choices(system="rae", tau=0.1, memorization=0.5, depth=9)
    write_choices(folder / "best", choices)
    return folder


def test_a_curve_is_measured_on_both_sides(model: Path, data: Path, tmp_path: Path) -> None:
    figures = tmp_path / "curve.json"
    arguments = ("--data", data, "--encoder", model, "--budget", "0.25", "1", "--json", figures)
    assert status_of(app, "budget", *arguments) == 0
    costs = orjson.loads(figures.read_bytes())["costs"]
    assert [(cost["share"], cost["rows"]) for cost in costs] == [(1.0, 48), (0.25, 12)]
    assert costs[0]["test"]["rows"] == 16
    assert costs[0]["held_out"]["rows"] == 9
    assert costs[0]["votes"] > costs[1]["votes"] > 0


@pytest.mark.parametrize("memorization", [0.0, 0.4, 1.0])
def test_the_whole_memory_is_measured_as_by_score(
    trained: Path, data: Path, memorization: float
) -> None:
    choices = Choices(system="rae", tau=0.1, memorization=memorization, depth=9)
    write_choices(trained / "best", choices)
    study = open_study(lf_xmc.read(data), run=trained, encoder=None)
    best = str(trained / "best")
    scored = open_scoring(best, lf_xmc.read(data), folder=trained / "best").chosen()[0].metrics
    found = study.test(np.arange(48))
    for name in ("P@1", "P@5", "R@100", "PSP@5"):
        assert found[name] == scored[name]


def test_a_runs_own_rows_and_choices_are_taken(trained: Path, data: Path) -> None:
    study = open_study(lf_xmc.read(data), run=trained, encoder=None)
    assert (len(study.slices.held_out), study.scoring.choices.depth) == (10, 9)


def test_what_is_wrong_is_one_line(
    data: Path, model: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        return one_line(status_of(app, "budget", *arguments), capsys.readouterr().err)

    places = ("--data", data, "--encoder", model)
    assert "above 0" in refused(*places, "--budget", "0.5", "0")
    assert "not 1.5" in refused(*places, "--budget", "1.5")
    assert refused("--data", data) == "give either --run or --encoder"
    assert "run.json" in refused("--data", data, "--run", tmp_path / "none")
    document = orjson.loads((trained / "run.json").read_bytes())
    document["settings"]["validation"]["rows"] = 0
    (trained / "run.json").write_bytes(orjson.dumps(document))
    assert "holds no rows out" in refused("--data", data, "--run", trained)
