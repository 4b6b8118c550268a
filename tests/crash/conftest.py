"""Fixtures of the crash tests (bundles and scenarios), and the report of their measurements."""

import shutil
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.crash.scenario import CATALOGUE, FIGURES, ITEMS, Scenario
from tests.support.tiny.bundles import make_bundle


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
def new_scenario(tmp_path: Path, catalogue_bundle: Path) -> Callable[..., Scenario]:
    """`new_scenario(seed=...)` creates the test's scenario with a new state folder."""
    return partial(Scenario, tmp_path / "scenario", bundle=catalogue_bundle)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the measurements; no test depends on them."""
    for line in FIGURES.lines():
        terminalreporter.write_line(line)
