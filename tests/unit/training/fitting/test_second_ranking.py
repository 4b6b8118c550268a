"""The last step of `fit`: a second ranking, where there is time and it gains something."""

from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from export.__main__ import app as export_app
from export.exported_encoder import open_exported
from service.command_line import run
from service.core.bundle.bundle import open_bundle
from training.__main__ import app
from training.checkpoints import second_ranking
from training.evaluation import results
from training.fitting.second_ranking import lines, seconds_needed
from training.fitting.time_left import Cost
from training.reranking.lessons import Lesson
from training.selection.gain import Gain


def test_it_gets_the_time_that_it_needs_or_none() -> None:
    facts, cost = SimpleNamespace(held_out=1_000), Cost(encode=20.0, choose=1.0)
    assert seconds_needed(facts, cost, of=1_200.0) == pytest.approx(53.0)  # type: ignore[arg-type]
    assert seconds_needed(facts, cost, of=200.0) == 0.0  # type: ignore[arg-type]
    few = SimpleNamespace(held_out=4)
    assert seconds_needed(few, cost, of=1_200.0) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trees", "said"),
    [
        (150, "by 150 trees: +2.0 ± 0.5 points on the held-out rows; it is kept"),
        (0, "by trees: +2.0 ± 0.5 points on the held-out rows, so the memory's own"),
    ],
)
def test_what_is_said(trees: int, said: str) -> None:
    choice = SimpleNamespace(trees=trees, gain=Gain(points=2.0, error=0.5))
    [line] = lines(SimpleNamespace(choice=choice))  # type: ignore[arg-type]
    assert said in line


def test_trees_lie_beside_the_checkpoint_and_follow_it(
    model: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Lesson, "score_by", lambda lesson, sums: 200.0)
    folder = tmp_path / "run"
    command = ["fit", "--data", str(data), "--out", str(folder), "--from", str(model)]
    assert run(app, [*command, "--minutes", "0.5"]) == 0
    assert "it is kept, and bundles of this run have it" in capsys.readouterr().out
    facts = orjson.loads((folder / "run.json").read_bytes())
    assert facts["second_ranking"]["trees"] == 50
    trees = second_ranking.read(folder / "best").facts

    assert run(app, ["score", "--data", str(data), "--run", str(folder)]) == 0
    assert results.read(folder).results[0].method == "reranked"

    source = ["--encoder", str(folder / "best"), "--data", str(data)]
    exported = tmp_path / "encoder"
    assert run(export_app, ["encoder", *source, "--out", str(exported), "--max-drop", "100"]) == 0
    open_exported(exported)
    assert second_ranking.read(exported).facts == trees

    bundle = ["bundle", "--data", str(data), "--reranker", str(folder / "best")]
    for place, encoder in enumerate((folder / "best", exported)):
        bundled = tmp_path / f"bundle-{place}"
        again = ["bundle", "--encoder", str(encoder), "--data", str(data), "--out", str(bundled)]
        limit = [] if encoder == exported else ["--max-drop", "100"]
        assert run(export_app, [*again, *limit]) == 0
        assert open_bundle(bundled).reranker is not None
    other = ["--encoder", str(model), "--max-drop", "100", "--out", str(tmp_path / "other")]
    assert run(export_app, [*bundle, *other]) == 2
    assert "the answers of another checkpoint" in capsys.readouterr().err


def test_what_gains_nothing_is_left_out(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    command = ["fit", "--data", str(data), "--out", str(folder), "--from", str(model)]
    assert run(app, [*command, "--minutes", "0.5"]) == 0
    assert "so the memory's own ranking is kept" in capsys.readouterr().out
    assert not second_ranking.is_second_ranking(folder / "best")
    assert orjson.loads((folder / "run.json").read_bytes())["second_ranking"]["trees"] == 0
