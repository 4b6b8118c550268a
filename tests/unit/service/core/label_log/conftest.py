"""Each test that asks for `place` runs once with SQLite and once with PostgreSQL."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.core.label_log import LabelLog
from tests.support.label_logs import Place, append


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The place of a log that does not exist yet."""
    return Place(tmp_path if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


@pytest.fixture
def log(place: Place) -> Iterator[LabelLog]:
    """An empty log."""
    with closing(place.open()) as opened:
        yield opened


@pytest.fixture
def three(place: Place) -> Place:
    """A closed log with the events a, b and c."""
    with closing(place.open()) as log:
        append(log, "a", "b", "c")
    return place
