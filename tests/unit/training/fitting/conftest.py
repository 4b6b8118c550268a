"""A run of `fit` that tests share, and a fixture that shortens their own runs."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from service.command_line import run
from training.__main__ import app
from training.fitting.candidates import CANDIDATES, QUICK
from training.models.vector_cache import VectorCache


def fit(data: Path, out: Path, encoder: Path, *more: str, minutes: float = 5) -> int:
    places = ["--data", str(data), "--out", str(out), "--encoder", str(encoder)]
    return run(app, ["fit", *places, "--minutes", str(minutes), *more])


class Fitted(NamedTuple):
    """The run's folder, and the number of texts that the frozen encoder encoded."""

    folder: Path
    encoded: int


@pytest.fixture(scope="session")
def fitted(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """A run of `fit` that tried all candidates; tests must not change it."""
    folder, encoded = tmp_path_factory.mktemp("fit") / "run", [0]
    vectors = VectorCache.vectors

    def noted(cache: VectorCache, table: Any, encode: Any) -> Any:
        def counted(rows: Any) -> Any:
            encoded[0] += len(rows)
            return encode(rows)

        return vectors(cache, table, counted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VectorCache, "vectors", noted)
        patch.setattr("training.fitting.facts.MOST_SPLITS", 1)
        assert fit(data, folder, model) == 0
    return Fitted(folder, encoded[0])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit `fit` to one candidate on one split, so that epochs and not the time end it."""
    monkeypatch.setattr("training.fitting.fit.CANDIDATES", {QUICK: CANDIDATES[QUICK]})
    monkeypatch.setattr("training.fitting.facts.MOST_SPLITS", 1)
