"""A writer with its log and memory for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.core.bundle.bundle import Bundle
from tests.support.writer_desk import Desk


@pytest.fixture
def desk_of(trigram_bundle: Bundle, tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(**limits: int) -> Desk:
        made.append(Desk(trigram_bundle, tmp_path / "state", **limits))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


@pytest.fixture
def desk(desk_of: Callable[..., Desk]) -> Desk:
    return desk_of()
