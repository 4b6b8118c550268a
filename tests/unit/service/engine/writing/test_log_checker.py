"""Walks over the label log report damage, and only damage."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from time import monotonic
from unittest.mock import Mock

import pytest

from service.core.label_log import LabelLog, open_log
from service.core.label_log.maintenance import compact
from service.core.label_log.newest_note import FILE_NAME as NOTE
from service.engine.writing import log_checker
from service.engine.writing.log_checker import LogChecker
from tests.support.label_logs import Place, append
from tests.support.waiting import wait_for

PAUSE = 0.01
Found = list[str]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LabelLog]:
    with closing(open_log(tmp_path)) as opened:
        append(opened, *(f"label {number}" for number in range(30)))
        yield opened


@pytest.fixture
def check(tmp_path: Path, log: LabelLog) -> Iterator[Callable[..., Found]]:
    """`check()` starts a checker, and returns the list to which each walk adds what it found."""
    checkers = []

    def begin(pause: float = PAUSE) -> Found:
        found: Found = []
        checkers.append(LogChecker(log, pause=pause, found=found.append))
        return found

    yield begin
    for checker in checkers:
        checker.close()


def test_a_whole_log_is_said_to_be_whole(check: Callable[..., Found], log: LabelLog) -> None:
    found = check()
    wait_for(lambda: len(found) > 2)
    append(log, "later")
    compact(log, log.link_at(20))  # a cut log counts as whole
    seen = len(found)
    wait_for(lambda: len(found) > seen + 1)
    assert set(found) == {""}


def alter_an_event(place: Place) -> str:
    place.tamper("UPDATE events SET body = '{}' WHERE sequence = 15")
    return "event 15 was altered"


def lose_the_end(place: Place) -> str:
    place.tamper("DELETE FROM events WHERE sequence > 28")
    (Path(place.state) / NOTE).unlink()
    return "ends at event 28, but this process has written or read event 30"


def damage_a_page(place: Place) -> str:
    file = Path(place.state) / "labels.sqlite"
    content = file.read_bytes()
    half = len(content) // 2
    file.write_bytes(content[:half] + b"\xff" * (len(content) - half))
    return "labels.sqlite"


@pytest.mark.parametrize("damage", [alter_an_event, lose_the_end, damage_a_page])
def test_damage_is_named(
    check: Callable[..., Found], log: LabelLog, tmp_path: Path, damage: Callable[[Place], str]
) -> None:
    log.shrink()  # moves the WAL into the file
    said = damage(Place(tmp_path))
    found = check()
    wait_for(lambda: found and found[-1])
    assert said in found[-1]


def test_a_log_that_cannot_be_opened_is_not_called_damaged(
    check: Callable[..., Found], log: LabelLog, tmp_path: Path
) -> None:
    (tmp_path / "labels.sqlite").rename(tmp_path / "aside")
    found = check()
    (tmp_path / "aside").rename(tmp_path / "labels.sqlite")
    wait_for(lambda: found)
    assert set(found) == {""}


def test_a_long_walk_ends_when_the_service_does(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_checker, "EVENTS_AT_ONCE", 1)
    monkeypatch.setattr(log_checker, "SHARE", 1e-9)  # the first pause would never end
    found: Found = []
    checker = LogChecker(log, pause=PAUSE, found=found.append)
    checker.close()
    assert found == []


def test_a_walk_begins_at_once_where_another_program_has_written(
    check: Callable[..., Found], log: LabelLog, tmp_path: Path
) -> None:
    log.shrink()
    found = check(pause=3600.0)
    file = tmp_path / "labels.sqlite"
    halves = f"seek={file.stat().st_size // 2}", "oflag=seek_bytes", "bs=64K"
    command = ["dd", f"of={file}", *halves, "conv=notrunc", "status=none"]
    subprocess.run(command, input=b"\xff" * 4096, check=True)
    wait_for(lambda: found)
    assert "labels.sqlite" in found[-1]


def test_a_slow_walk_is_begun_anew_in_a_hurry_where_another_program_has_written(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_checker, "EVENTS_AT_ONCE", 1)
    monkeypatch.setattr(log_checker, "SHARE", 2e-3)  # 30 pauses of half a second
    monkeypatch.setattr(log_checker, "thread_time", Mock(side_effect=count(step=1e-3)))
    monkeypatch.setattr(log, "touched", Mock(side_effect=[False, True, *[False] * 99]))
    found: Found = []
    with closing(LogChecker(log, pause=PAUSE, found=found.append)):
        start = monotonic()
        wait_for(lambda: found)
    assert found == [""] and monotonic() - start < 10


def test_a_pause_of_zero_walks_never(check: Callable[..., Found]) -> None:
    never, often = check(0.0), check()
    wait_for(lambda: len(often) > 2)
    assert never == []
