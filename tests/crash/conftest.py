"""A bundle for crashes, and the figures that they yield."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.figures import FIGURES
from tests.crash.life import Life
from tests.support.bundles import Catalogue, make_bundle

NOUNS = ("boots", "lamp", "mat", "pole", "rope", "stove", "tent", "vest")
KINDS = ("alpine", "camping", "glacier", "ultra", "winter")
CATALOGUE = Catalogue(
    labels={f"{kind}-{noun}": f"{kind} {noun}" for kind in KINDS for noun in NOUNS},
    instances={
        f"{noun} for the {kind}": (f"{kind}-{noun}", f"winter-{noun}")
        for kind in KINDS
        for noun in NOUNS
    },
)


@pytest.fixture(scope="session")
def catalogue_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of 40 labels and 40 instances; do not change it."""
    return make_bundle(tmp_path_factory.mktemp("crash") / "shelf" / "outdoor", CATALOGUE)


@pytest.fixture
def shelf(catalogue_bundle: Path, tmp_path: Path) -> Path:
    """A folder of its own for the bundle and its snapshots."""
    return Path(shutil.copytree(catalogue_bundle, tmp_path / "shelf" / "outdoor")).parent


@pytest.fixture
def begin(tmp_path: Path, catalogue_bundle: Path) -> Iterator[Callable[..., Life]]:
    """`begin(seed=...)` begins a life on a state of its own; its ready times are reported."""
    lives: list[Life] = []

    def new(**how: object) -> Life:
        how = {"bundle": catalogue_bundle, **how}
        lives.append(Life(tmp_path / f"life-{len(lives)}", catalogue=CATALOGUE, **how))
        return lives[-1]

    yield new
    for life in lives:
        FIGURES.ready += life.ready_seconds
        FIGURES.writes += life.writes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was measured; figures are for the reader, not for the verdict."""
    for line in FIGURES.lines():
        terminalreporter.write_line(line)
