"""The last step of `fit`: a reranker, if there is time and it gains something."""

from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from export.__main__ import app as export_app
from export.exported_encoder import open_exported
from service.command_line import run
from service.core.bundle.bundle import open_bundle
from tests.support.tiny.training import write_tiny_checkpoint
from tests.unit.training.fitting.conftest import Fitted, fit
from training.__main__ import app
from training.checkpoints import reranker_folder
from training.evaluation import results
from training.fitting.reranker import lines, seconds_needed
from training.fitting.time_left import Cost
from training.reranking.learning import Lesson
from training.selection.validation import Gain


def test_it_gets_the_time_that_it_needs_or_none() -> None:
    facts, cost = SimpleNamespace(held_out=1_000), Cost(encode=20.0, choose=1.0)
    few = SimpleNamespace(held_out=4)

    def needed(of: float, *, facts: SimpleNamespace = facts, share: float = 0.2) -> float:
        return seconds_needed(facts, cost, of=of, share=share)  # type: ignore[arg-type]

    assert needed(1_200.0) == pytest.approx(53.0)
    assert needed(200.0) == 0.0
    assert needed(200.0, share=0.5) == pytest.approx(53.0)  # if the parent has a reranker
    assert needed(1_200.0, facts=few) == 0.0
    cost = Cost(encode=20.0, choose=1.0, slowness=2.0)  # on a busy machine
    assert needed(1_200.0) == pytest.approx(86.0)


def test_that_trees_gain_nothing_is_said() -> None:
    choice = SimpleNamespace(trees=0, gain=Gain(points=2.0, error=0.5))
    [line] = lines(SimpleNamespace(choice=choice))  # type: ignore[arg-type]
    assert "by trees: +2.0 ± 0.5 points on the held-out rows, so the memory's own" in line


@pytest.mark.usefixtures("short")
def test_trees_lie_beside_the_checkpoint_and_follow_it(
    model: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Lesson, "score_by", lambda lesson, sums: 200.0)
    folder = tmp_path / "run"
    assert fit(data, folder, model) == 0
    assert "it is kept, and bundles of this run have it" in capsys.readouterr().out
    facts = orjson.loads((folder / "run.json").read_bytes())
    assert facts["second_ranking"]["trees"] == 50
    trees = reranker_folder.read(folder / "best").facts

    assert run(app, ["score", "--data", str(data), "--run", str(folder)]) == 0
    assert results.read(folder).results[0].method == "reranked"

    source = ["--encoder", str(folder / "best"), "--data", str(data)]
    exported = tmp_path / "encoder"
    assert run(export_app, ["encoder", *source, "--out", str(exported), "--quantize", "none"]) == 0
    open_exported(exported)
    assert reranker_folder.read(exported).facts == trees

    bundle = ["bundle", "--data", str(data), "--reranker", str(folder / "best")]
    for place, encoder in enumerate((folder / "best", exported)):
        bundled = tmp_path / f"bundle-{place}"
        again = ["bundle", "--encoder", str(encoder), "--data", str(data), "--out", str(bundled)]
        again.append("--quick")  # so that nothing is measured that might leave it out
        limit = [] if encoder == exported else ["--quantize", "none"]
        assert run(export_app, [*again, *limit]) == 0
        assert open_bundle(bundled).reranker is not None
    # This is not `model`, because `fit` may have kept that encoder.
    stranger = write_tiny_checkpoint(tmp_path, seed=1)
    other = ["--encoder", str(stranger), "--quantize", "none", "--out", str(tmp_path / "other")]
    assert run(export_app, [*bundle, *other]) == 2
    assert "the answers of another checkpoint" in capsys.readouterr().err


def test_what_gains_nothing_is_left_out(fitted: Fitted) -> None:
    assert not reranker_folder.is_reranker(fitted.folder / "best")
    facts = orjson.loads((fitted.folder / "run.json").read_bytes())
    assert facts["second_ranking"]["trees"] == 0
