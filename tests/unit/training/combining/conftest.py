"""Two runs on the tiny data set that hold out the same rows, and the recipe of both."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def runs(two_runs: Path) -> Path:
    """A folder with the runs `rae` and `supcon`, which tests must not change, and their recipe."""
    return two_runs
