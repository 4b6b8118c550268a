"""The distill command: a student's folder as export takes it, and errors in one line."""

from pathlib import Path

import orjson
import pytest

from export.encoder.provenance import predictor_defaults, read_origin
from service.command_line import run
from training.__main__ import app


def distill(out: Path, *flags: str, **options: object) -> int:
    """Run the command with one layer and two steps, unless `options` say otherwise."""
    numbers = {"layers": 1, "steps": 2, "batch": 8, "precision": "fp32"}
    words = [
        word
        for name, value in {"out": out, **numbers, **options}.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    return run(app, ["distill", *words, *flags])


def test_a_student_is_a_checkpoint_that_export_takes(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(tmp_path / "run", teacher=model, data=data) == 0

    best = tmp_path / "run" / "best"
    origin = read_origin(best)
    assert origin is not None
    assert (origin.recipe, origin.base, origin.dataset) == ("distill", str(model), "colours")
    facts = orjson.loads((tmp_path / "run" / "run.json").read_bytes())
    assert predictor_defaults(best).tau == facts["choices"]["tau"]
    assert "held-out rows: cosine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"layers": 2}, "layers: must lie in 0..1, the teacher's layers, not 2"),
        ({"layers": -1}, "layers: must be at least 0"),
        ({"query_share": 1.5}, "query-share: must be between 0 and 1"),
        ({"tau": 0}, "tau: must be above 0"),
        ({"teacher": "/nowhere/at/all"}, "teacher '/nowhere/at/all': there is no such folder"),
        ({"max_tokens": 99}, "max-tokens must lie in 1..32"),
    ],
)
def test_wrong_arguments_are_one_line(
    changes: dict[str, object],
    complaint: str,
    model: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert distill(tmp_path / "run", **{"teacher": model, "data": data, **changes}) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "run" / "best").exists()


def test_a_folder_with_a_run_is_not_overwritten(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(tmp_path / "run", teacher=model, data=data) == 0
    assert distill(tmp_path / "run", teacher=model, data=data) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert distill(tmp_path / "run", "--resume", teacher=model, data=data) == 0
