"""Fixtures of the crash tests (bundles and scenarios), and the report of their measurements."""

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.crash.scenario import FIGURES, Scenario
from tests.support.tiny.bundles import Catalogue, make_bundle

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

ITEMS = {kind: f"for the {kind}" for kind in KINDS}


@pytest.fixture(scope="session")
def catalogue_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of 40 labels, 40 instances and 5 items; do not change it."""
    folder = tmp_path_factory.mktemp("crash") / "shelf" / "outdoor"
    return make_bundle(folder, CATALOGUE, items=ITEMS)


@pytest.fixture(scope="session")
def unidec_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the same catalogue from a short UniDEC run; do not change it."""
    if find_spec("torch") is None:
        pytest.skip("torch is absent")
    from tests.support.tiny.unidec import make_unidec_bundle

    return make_unidec_bundle(tmp_path_factory.mktemp("unidec"), CATALOGUE)


@pytest.fixture
def shelf(catalogue_bundle: Path, tmp_path: Path) -> Path:
    """A new folder with a copy of the bundle; snapshots are written next to it."""
    return Path(shutil.copytree(catalogue_bundle, tmp_path / "shelf" / "outdoor")).parent


@pytest.fixture
def new_scenario(tmp_path: Path, catalogue_bundle: Path) -> Iterator[Callable[..., Scenario]]:
    """`new_scenario(seed=...)` creates a scenario with a new state folder."""
    scenarios: list[Scenario] = []

    def new(**how: object) -> Scenario:
        how = {"bundle": catalogue_bundle, "items": ITEMS, **how}
        folder = tmp_path / f"scenario-{len(scenarios)}"
        scenarios.append(Scenario(folder, catalogue=CATALOGUE, **how))
        return scenarios[-1]

    yield new
    for scenario in scenarios:
        FIGURES.ready += scenario.ready_seconds
        FIGURES.writes += scenario.writes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the measurements; no test depends on them."""
    for line in FIGURES.lines():
        terminalreporter.write_line(line)
