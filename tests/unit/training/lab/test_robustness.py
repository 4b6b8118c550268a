"""The file of `robustness` is written and read; wrong content is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidConfig, InvalidData
from training.lab import robustness
from training.lab.robustness import (
    METRICS,
    PREDICTED,
    TRUE,
    Condition,
    Measured,
    Robustness,
    RunRobustness,
)


def measured(condition: Condition, *values: float) -> Measured:
    return Measured(
        condition=condition, draws=tuple(dict.fromkeys(METRICS, value) for value in values)
    )


def some_robustness() -> Robustness:
    dropped = Condition(metadata="dropped", share=0.2)
    oracle = RunRobustness(
        run="oracle",
        system="rae",
        reads="texts",
        guided_by=None,
        measured=(measured(TRUE, 60.0), measured(dropped, 50.0, 52.0, 54.0)),
    )
    return Robustness(dataset="colours", seeds=(1, 2, 3), precision="fp32", runs=(oracle,))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    robustness.write(some_robustness(), tmp_path)
    assert robustness.read(tmp_path / robustness.FILE) == some_robustness()


def test_draws_have_a_mean_and_a_deviation() -> None:
    true, dropped = some_robustness().runs[0].measured
    assert (true.mean("P@1"), true.deviation("P@1"), true.shown("P@1")) == (60.0, None, "60.00")
    assert (dropped.mean("P@1"), dropped.deviation("P@1")) == (52.0, 2.0)
    assert dropped.shown("P@1") == "52.00 ± 2.00"
    assert str(dropped.condition) == "dropped 20 %"
    assert some_robustness().runs[0].under(PREDICTED) is None


@pytest.mark.parametrize(
    ("reads", "guided_by", "role"),
    [
        ("texts", None, "oracle"),
        ("items", None, "oak"),
        ("items", "oracle", "MOGIC (oak)"),
        ("nothing", "oracle", "MOGIC (oak)"),
    ],
)
def test_a_runs_role(reads: Any, guided_by: str | None, role: str) -> None:
    run = RunRobustness(
        run="x", system="oak", reads=reads, guided_by=guided_by, measured=(measured(TRUE, 1.0),)
    )
    assert run.role == role


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format: must be 'keymatch-robustness'"),
        ({"runs": []}, "runs"),
        ({"colour": "red"}, "colour is unknown"),
        ({}, "a draw has no nDCG@5"),
    ],
)
def test_other_files_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / robustness.FILE
    robustness.write(some_robustness(), tmp_path)
    whole = path.read_text() if change else path.read_text().replace("nDCG@5", "nDCG@6")
    path.write_text(json.dumps({**json.loads(whole), **change}))
    with pytest.raises((InvalidData, InvalidConfig), match=rf"robustness\.json: .*{message}"):
        robustness.read(path)
