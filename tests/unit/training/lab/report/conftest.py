"""Made-up results, in which different metrics have different values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.evaluation.results import PER_ROW, Check, Result, Results, write
from training.lab.report.runs import Run

N = 4  # test rows
OTHERS = ("P@3", "nDCG@5", "PSP@1", "PSP@5", "R@10", "coverage@5")
MakeResult = Callable[..., Result]
MakeRun = Callable[..., Run]


@pytest.fixture
def result() -> MakeResult:
    """`result((P@1, P@5, R@100), ...)`; all other metrics are 1."""

    def make(figures: tuple[float, float, float], **facts: Any) -> Result:
        metrics = dict(zip(PER_ROW, figures, strict=True)) | dict.fromkeys(OTHERS, 1.0)
        metrics |= {"rows": float(N), "rows without labels": 0.0}
        defaults = {"method": "memory", "segments": {"head": 10.0, "xtail": 5.0}}
        return Result(metrics=metrics, **(defaults | facts))

    return make


@pytest.fixture
def run(result: MakeResult) -> MakeRun:
    """A run like those of `score`: lambda and b are swept, 0.5 and 200 chosen; Eq. 11 at 0.5."""

    def make(name: str = "rae", **facts: Any) -> Run:
        ways = facts.pop("ways", None) or (
            result((50, 30, 80), memorization=0.5, depth=200, chosen=True),
            result((40, 20, 70), memorization=0.0, depth=200, method="labels only"),
            result((50, 30, 80), memorization=0.5, depth=200),
            result((45, 31, 60), memorization=1.0, depth=200, method="instances only"),
            result((48, 28, 75), memorization=0.5, depth=50),
            result((46, 29, 81), memorization=0.5, depth=200, method="separate"),
        )
        defaults: dict[str, Any] = {
            "system": "rae",
            "dataset": "colours",
            "propensity": {"a": 0.55, "b": 1.5},
            "training_seconds": 90.0,
            "settings": {
                "system": {"name": "rae"},
                "batch": {"hard_negatives": 2},
                "validation": {"rows": 1000},
            },
            "hardware": {"device": "a processor"},
            "history": (
                Check(step=1, seconds=30.0, memorization=0.5, metrics={"P@1": 41.0}),
                Check(step=2, seconds=60.0, memorization=0.5, metrics={"P@1": 49.0}),
                Check(step=1, seconds=30.0, memorization=0.0, metrics={"P@1": 20.0}),
                Check(step=2, seconds=60.0, memorization=0.0, metrics={"P@1": 39.0}),
            ),
            "rows": np.eye(N, len(PER_ROW)),
            "held_out_rows": 1000,
        }
        return Run(
            folder=Path(name), results=Results(name=name, results=ways, **(defaults | facts))
        )

    return make


@pytest.fixture
def peer(run: MakeRun, result: MakeResult) -> Run:
    """A peer: one way to predict, no lambda, no history."""
    return run(
        "bm25",
        ways=(result((37, 14, 57), method="BM25", chosen=True, segments={"head": 4.0}),),
        system="BM25",
        training_seconds=None,
        settings={"k1": 0.9},
        held_out_rows=0,
        history=(),
    )


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Run], Path]:
    """Write a run's results into a folder of the test; return the folder."""

    def write_one(run: Run, name: str | None = None) -> Path:
        folder = tmp_path / (name or run.name)
        write(run.results, folder)
        return folder

    return write_one
