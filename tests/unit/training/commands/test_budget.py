"""`training budget` on a tiny encoder, which is all that it needs."""

import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.command_line import run
from tests.support.commands import WIDE, Refused, one_line, status_of
from training.__main__ import app
from training.checkpoints.choices import Choices, write_choices
from training.datasets import lf_xmc
from training.evaluation.metrics import labels_to_rank
from training.evaluation.prediction import predict, retrieve
from training.experiments.cost_curve import Cost, preferred
from training.experiments.study import open_study


@pytest.fixture
def trained(model: Path, tmp_path: Path) -> Path:
    """A folder as `train` leaves it, but for what only it needs."""
    folder = tmp_path / "run"
    shutil.copytree(model, folder / "best")
    settings = {"validation": {"rows": 10}, "seed": 3}
    facts = {"dataset": "colours", "settings": settings}
    (folder / "run.json").write_bytes(orjson.dumps(facts))
    choices = Choices(system="rae", tau=0.1, memorization=0.5, depth=9)
    write_choices(folder / "best", choices)
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """`refused("budget", ...)` returns the command's complaint."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)

    def refuse(*arguments: object) -> str:
        capsys.readouterr()
        status = status_of(app, *arguments)
        return one_line(status, capsys.readouterr().err)

    return refuse


def test_a_curve_is_measured_on_both_sides(model: Path, data: Path, tmp_path: Path) -> None:
    figures, plot = tmp_path / "curve.json", tmp_path / "curve.png"
    arguments = ("--data", data, "--encoder", model, "--held-out", "12", "--budgets", "0.25", "1")
    outputs = ("--methods", "random", "merge", "--json", figures, "--plot", plot)
    assert run(app, ["budget", *map(str, (*arguments, *outputs))]) == 0
    document = orjson.loads(figures.read_bytes())
    costs = document["costs"]
    assert [(cost["method"], cost["share"], cost["rows"]) for cost in costs] == [
        ("random", 1.0, 48),
        ("random", 0.25, 12),
        ("merge", 1.0, 48),
        ("merge", 0.25, 12),
    ]
    assert costs[0]["test"] == costs[2]["test"]
    assert costs[0]["test"]["rows"] == 16
    assert costs[0]["held_out"]["rows"] == 12
    assert document["preferred"] in ("random", "merge")
    drawn = sorted(path.name for path in tmp_path.glob("*.png"))
    assert drawn == [f"curve-{name}.png" for name in ("P1", "P5", "PSP5", "R100")]


def test_the_method_is_chosen_on_held_out_rows_below_the_whole_memory() -> None:
    def cost(method: str, share: float, held_out: float, test: float) -> Cost:
        metrics = [dict.fromkeys(("P@1", "P@5", "R@100", "PSP@5"), one) for one in (held_out, test)]
        return Cost(
            method=method, share=share, rows=1, votes=1, held_out=metrics[0], test=metrics[1]
        )

    whole = [cost(method, 1.0, 99.0, 99.0) for method in ("random", "merge")]
    less = [cost("random", 0.5, 40.0, 10.0), cost("merge", 0.5, 30.0, 90.0)]
    assert preferred([*whole, *less]) == "random"
    assert preferred(whole) is None


def test_the_whole_memory_is_searched_as_elsewhere(model: Path, data: Path) -> None:
    """Two searches put together are the one search of both blocks."""
    study = open_study(lf_xmc.read(data), run=None, encoder=str(model), rows=12)
    side = study.test()
    keys, retrieved = side.memory(side.instances, side.labels_of)
    once = retrieve(keys, side.queries, depth=study.choices.depth)
    for memorization in (0.0, 0.4, 1.0):
        ranked = side.ranked(keys, retrieved, memorization=memorization)
        voting = once.voting(memorization, study.choices.depth)
        expected = predict(
            keys,
            voting,
            tau=study.choices.tau,
            memorization=memorization,
            top_k=labels_to_rank(side.filtered),
            order=keys.label_order,
        )
        assert np.array_equal(ranked, expected.labels)


def test_held_out_rows_are_not_in_the_memory_that_they_ask(model: Path, data: Path) -> None:
    study = open_study(lf_xmc.read(data), run=None, encoder=str(model), rows=12)
    side = study.held_out()
    assert (len(side.instances), len(side.queries)) == (36, 12)
    assert (side.queries @ side.instances.T).max() < 0.99999


def test_a_runs_own_rows_and_choices_are_taken(trained: Path, data: Path) -> None:
    study = open_study(lf_xmc.read(data), run=trained, encoder=None)
    assert (len(study.slices.held_out), study.choices.depth) == (10, 9)


def test_what_is_wrong_is_one_line(
    refused: Refused, data: Path, model: Path, trained: Path, tmp_path: Path
) -> None:
    places = ("--data", data, "--encoder", model)
    assert "above 0" in refused("budget", *places, "--budgets", "0.5", "0")
    assert "not 1.5" in refused("budget", *places, "--budgets", "1.5")
    assert "known are random" in refused("budget", *places, "--methods", "magic")
    assert refused("budget", "--data", data) == "give either --run or --encoder"
    assert "too many" in refused("budget", *places, "--held-out", "40")
    own = refused("budget", "--data", data, "--run", trained, "--held-out", "4")
    assert "a run has its own held-out rows" in own
    assert "run.json" in refused("budget", "--data", data, "--run", tmp_path / "none")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"dataset": "moby"}, "was trained on 'moby', not on 'colours'"),
        ({"settings": {"validation": {"rows": 0}, "seed": 0}}, "held no rows out"),
    ],
)
def test_a_run_that_cannot_be_asked(
    refused: Refused, data: Path, trained: Path, facts: dict, said: str
) -> None:
    document = orjson.loads((trained / "run.json").read_bytes())
    (trained / "run.json").write_bytes(orjson.dumps(document | facts))
    assert said in refused("budget", "--data", data, "--run", trained)
